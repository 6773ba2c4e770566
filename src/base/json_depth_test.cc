#include "base/json_depth.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace fathom {
namespace {

TEST(JsonDepth, CountsBracketsThatNest) {
  EXPECT_EQ(json_depth("3"), 0);
  EXPECT_EQ(json_depth(R"({"a": [1, {"b": []}], "c": []})"), 4);
  EXPECT_EQ(json_depth(R"(["[[[", "\"[[", "\\"])"), 1);
  EXPECT_EQ(json_depth("[ // [[\" [\n /* [[ */ 1]"), 1);
  EXPECT_EQ(json_depth("[/"), 1);
  EXPECT_EQ(json_depth("[\"\\"), 1);
}

TEST(JsonDepth, DeepTextIsRefused) {
  EXPECT_NO_THROW(check_json_depth(std::string(64, '['), "x"));
  try {
    check_json_depth(std::string(100000, '['), "x.json");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "x.json: expected JSON of at most 64 levels, got 100000");
  }
}

}  // namespace
}  // namespace fathom
