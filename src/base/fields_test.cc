#include "base/fields.h"

#include <gtest/gtest.h>

#include <array>

#include "base/error.h"

namespace fathom {
namespace {

enum class Colour : uint8_t { kRed, kGreen };
std::span<const std::string_view> enum_names(Colour) {
  static constexpr std::array<std::string_view, 2> kNames{"red", "green"};
  return kNames;
}

struct Inner {
  float rate = 0.5f;
  template <class V>
  void visit(V& v) {
    v("rate", rate, "", "speed");
  }
};

struct Config {
  bool on = false;
  int32_t count = 3;
  int64_t large = 1;
  uint64_t seed = 7;
  std::string name = "a";
  std::vector<int32_t> layers;
  std::vector<std::string> files;
  std::vector<float> shares;
  Colour colour = Colour::kRed;
  Inner inner;
  template <class V>
  void visit(V& v) {
    v("on", on);
    v("count", count, "how many", "number");
    v("large", large);
    v("seed", seed);
    v("name", name);
    v("layers", layers);
    v("files", files);
    v("shares", shares);
    v("colour", colour);
    v("inner", inner);
  }
};

std::string error_of(auto&& fn) {
  try {
    fn();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Fields, JsonRoundTrip) {
  Config config{true,   -4,      int64_t{1} << 40, ~uint64_t{0},   "x \"y\"",
                {1, 2}, {"a b"}, {0.1f, 1},        Colour::kGreen, {0.25f}};
  const std::string json = fields_to_json(fields_of(config));
  Config back;
  fields_from_json(fields_of(back), json, "test");
  EXPECT_EQ(fields_to_json(fields_of(back)), json);
  EXPECT_EQ(back.seed, ~uint64_t{0});
  EXPECT_EQ(back.inner.rate, 0.25f);
  EXPECT_EQ(back.colour, Colour::kGreen);
  EXPECT_EQ(back.shares, (std::vector<float>{0.1f, 1}));
  EXPECT_NE(json.find("0.1,"), std::string::npos) << json;
}

TEST(Fields, ReadsCommentsAndLeavesTheRest) {
  Config config;
  fields_from_json(fields_of(config), "{ // a comment\n \"count\": 5 }", "test");
  EXPECT_EQ(config.count, 5);
  EXPECT_EQ(config.name, "a");
}

TEST(Fields, NamesTheNearestKey) {
  Config config;
  const auto read = [&](const char* text) {
    return error_of([&] { fields_from_json(fields_of(config), text, "f.json"); });
  };
  EXPECT_EQ(read("{\"cuont\": 5}"), "f.json: there is no key 'cuont' (did you mean 'count'?)");
  EXPECT_EQ(read("{\"inner\": {\"rat\": 1}}"),
            "f.json: there is no key 'inner.rat' (did you mean 'inner.rate'?)");
  // An empty object is no reason to let a wrong name pass.
  EXPECT_EQ(read("{\"iner\": {}}"), "f.json: there is no key 'iner' (did you mean 'inner'?)");
  EXPECT_EQ(read("{\"inner\": {\"rat\": {}}}"),
            "f.json: there is no key 'inner.rat' (did you mean 'inner.rate'?)");
  EXPECT_EQ(read("{\"count\": {}}"), "f.json: 'count' must be a whole number that fits, got {}");
  EXPECT_EQ(read("{\"inner\": {}}"), "");
}

std::string warning_of(auto&& fn) {
  testing::internal::CaptureStderr();
  fn();
  return testing::internal::GetCapturedStderr();
}

TEST(Fields, OldNamesAreTakenWithAWarning) {
  Config config, other;
  std::string said = warning_of(
      [&] { fields_from_json(fields_of(config), R"({"number": 5, "inner": {"speed": 0.25}})", "f.json"); });
  EXPECT_NE(said.find("f.json: 'number' is now called 'count'"), std::string::npos) << said;
  EXPECT_NE(said.find("f.json: 'inner.speed' is now called 'inner.rate'"), std::string::npos) << said;
  said = warning_of(
      [&] { fields_from_json(fields_of(other), R"({"count": 5, "inner": {"rate": 0.25}})", "f.json"); });
  EXPECT_EQ(said, "");
  EXPECT_EQ(fields_to_json(fields_of(config)), fields_to_json(fields_of(other)));
  said = warning_of([&] { set_field(fields_of(config), "inner.speed", "0.125"); });
  EXPECT_NE(said.find("'inner.speed' is now called 'inner.rate'"), std::string::npos) << said;
  EXPECT_EQ(config.inner.rate, 0.125f);
}

TEST(Fields, BothNamesAreRefused) {
  Config config;
  EXPECT_EQ(error_of([&] {
              fields_from_json(fields_of(config), R"({"inner": {"rate": 1, "speed": 2}})", "f.json");
            }),
            "f.json: 'inner.speed' is the old name of 'inner.rate': expected one of them, got both");
}

TEST(Fields, GivesNewNamesToJson) {
  Config config;
  std::string json;
  warning_of([&] {
    json = with_new_names(fields_of(config), R"({"number": 5, "other": [1], "inner": {"speed": 2}})", "f");
  });
  EXPECT_EQ(json, R"({"other":[1],"inner":{"rate":2},"count":5})");
}

TEST(Fields, RefusesWrongTypes) {
  Config config;
  const auto read = [&](const char* text) {
    return error_of([&] { fields_from_json(fields_of(config), text, "f"); });
  };
  EXPECT_EQ(read("{\"count\": 1.5}"), "f: 'count' must be a whole number that fits, got 1.5");
  EXPECT_EQ(read("{\"count\": 5000000000}"), "f: 'count' must be a whole number that fits, got 5000000000");
  EXPECT_EQ(read("{\"on\": 1}"), "f: 'on' must be true or false, got 1");
  EXPECT_EQ(read("{\"colour\": \"blue\"}"), "f: 'colour' must be one of red, green, got blue");
  EXPECT_EQ(read("{\"layers\": [1, \"x\"]}"), "f: 'layers' must be a whole number that fits, got \"x\"");
  EXPECT_EQ(read("{\"files\": [\"x\", 1]}"), "f: 'files' must be a list of strings, got [\"x\",1]");
  EXPECT_EQ(read("[1]"), "f: expected a JSON object");
}

TEST(Fields, SetsFromText) {
  Config config;
  const std::vector<Field> fields = fields_of(config);
  set_field(fields, "inner.rate", "0.125");
  set_field(fields, "colour", "green");
  set_field(fields, "layers", "[3,4]");
  EXPECT_EQ(config.inner.rate, 0.125f);
  EXPECT_EQ(config.colour, Colour::kGreen);
  EXPECT_EQ(config.layers, (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(field_text(fields[8]), "green");
  EXPECT_THROW(set_field(fields, "inner.rate", "fast"), UsageError);
}

}  // namespace
}  // namespace fathom
