#include "load/load_report.h"

#include <gtest/gtest.h>

#include <numeric>

namespace fathom {
namespace {

TEST(LoadReport, PercentilesLieBetweenTheNearestValues) {
  const std::vector<double> values{4, 1, 3, 2};  // in the order in which replies end
  EXPECT_EQ(percentile(values, 0), 1);
  EXPECT_DOUBLE_EQ(percentile(values, 25), 1.75);
  EXPECT_DOUBLE_EQ(percentile(values, 50), 2.5);
  EXPECT_DOUBLE_EQ(percentile(values, 95), 3.85);
  EXPECT_EQ(percentile(values, 100), 4);
}

TEST(LoadReport, PercentilesOfManyValues) {
  std::vector<double> values(101);
  std::iota(values.rbegin(), values.rend(), 0.0);
  for (const double p : {1, 50, 95, 99}) EXPECT_DOUBLE_EQ(percentile(values, p), p);
  values.assign(20, 1.0);
  values.back() = 100;
  EXPECT_EQ(percentile(values, 94), 1);
  EXPECT_GT(percentile(values, 95), 1);
}

TEST(LoadReport, PercentilesOfOneValueAndOfNone) {
  for (const double p : {0, 50, 99, 100}) EXPECT_EQ(percentile({7}, p), 7);
  EXPECT_EQ(percentile({}, 95), 0);
}

// From the first arrival to the last end; what failed takes time and brings no tokens.
TEST(LoadReport, TokensASecond) {
  LoadRun run;
  run.requests.resize(3);
  for (auto& request : run.requests) request.tokens = 100;
  run.requests[0].sent = 1;
  run.requests[0].end = 3;
  run.requests[1].sent = 2;
  run.requests[1].end = 4;
  run.requests[2].sent = 2;
  run.requests[2].end = 6;
  EXPECT_DOUBLE_EQ(tokens_per_second(run), 60);
  run.requests[2].error = "429";
  EXPECT_DOUBLE_EQ(tokens_per_second(run), 40);
  EXPECT_EQ(tokens_per_second({}), 0);
}

}  // namespace
}  // namespace fathom
