#include "serve/metrics.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

// Buckets hold what is at or below their bound, those before them included.
TEST(Metrics, AHistogramsLines) {
  Histogram histogram({0.5, 1, 2});
  for (const double value : {0.25, 0.5, 0.75, 2.0, 8.0}) histogram.add(value);
  std::string out;
  histogram.write(out, "x", "help", "m=\"y\"");
  EXPECT_EQ(out,
            "# HELP fathom:x help\n# TYPE fathom:x histogram\n"
            "fathom:x_bucket{m=\"y\",le=\"0.5\"} 2\n"
            "fathom:x_bucket{m=\"y\",le=\"1\"} 3\n"
            "fathom:x_bucket{m=\"y\",le=\"2\"} 4\n"
            "fathom:x_bucket{m=\"y\",le=\"+Inf\"} 5\n"
            "fathom:x_sum{m=\"y\"} 11.5\n"
            "fathom:x_count{m=\"y\"} 5\n");
}

TEST(Metrics, NamesAreEscaped) {
  EXPECT_NE(Metrics().text(nullptr, "a\"b\\c\nd").find("model_name=\"a\\\"b\\\\c\\nd\""), std::string::npos);
}

}  // namespace
}  // namespace fathom
