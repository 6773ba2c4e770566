#include "eval/python_literal.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "train/temporary_folder_test.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

TEST(PythonLiteral, ReadsWhatPythonPrints) {
  EXPECT_EQ(parse_python_literal("[]"), Json::array());
  EXPECT_EQ(parse_python_literal(" { } "), Json::object());
  EXPECT_EQ(parse_python_literal("['a', \"it's\", 'say \"no\"', 'both \\' \"',]"),
            Json({"a", "it's", "say \"no\"", "both ' \""}));
  EXPECT_EQ(parse_python_literal("{'k': ['x'], 'l': {'m': ''}}"),
            Json({{"k", Json::array({"x"})}, {"l", {{"m", ""}}}}));
  EXPECT_EQ(parse_python_literal("'\\\\ \\n\\r\\t \\xe9 \\u2019 \\U0001f41f é'"),
            "\\ \n\r\t é ’ \U0001f41f é");
}

TEST(PythonLiteral, AnythingElseIsRefused) {
  const auto refusal = [](const std::string& text) { return error_of([&] { parse_python_literal(text); }); };
  EXPECT_EQ(refusal(""), "expected a list, a dict or a string at its end");
  EXPECT_EQ(refusal("[1]"), "expected a list, a dict or a string at byte 1, got '1]'");
  EXPECT_EQ(refusal("[None]"), "expected a list, a dict or a string at byte 1, got 'None]'");
  EXPECT_EQ(refusal("['a' 'b']"), "expected ',' or ']' at byte 5, got ''b']'");
  EXPECT_EQ(refusal("['a'"), "expected ',' or ']' at its end");
  EXPECT_EQ(refusal("[,]"), "expected a list, a dict or a string at byte 1, got ',]'");
  EXPECT_EQ(refusal("{'a'}"), "expected ':' at byte 4, got '}'");
  EXPECT_EQ(refusal("{'a': 'b' 'c'}"), "expected ',' or '}' at byte 10, got ''c'}'");
  EXPECT_EQ(refusal("'a"), "expected the end of a string at its end");
  EXPECT_EQ(refusal("'a\nb'"), "expected the end of a string at byte 2, got '\\x0ab''");
  EXPECT_EQ(refusal("'a' 'b'"), "expected the end at byte 4, got ''b''");
  EXPECT_EQ(refusal("'\\q'"), "expected one of \\ ' \" n r t x u U after a backslash at byte 2, got 'q''");
  EXPECT_EQ(refusal("'\\"), "expected one of \\ ' \" n r t x u U after a backslash at its end");
  EXPECT_EQ(refusal("'\\xe"), "expected a digit from 0 to f at its end");
  EXPECT_EQ(refusal("'\\ud83d'"), "expected a character before this at byte 7, got '''");
  EXPECT_EQ(refusal("'\\U00110000'"), "expected a character before this at byte 11, got '''");
  EXPECT_EQ(refusal(std::string(100000, '[')).rfind("expected lists and dicts at most 8 deep at byte 8", 0),
            0u);
  EXPECT_EQ(parse_python_literal("[[[[[[[[]]]]]]]]").size(), 1u);  // eight
}

}  // namespace
}  // namespace fathom
