#include "serve/json_schema.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/rng.h"
#include "serve/json_machine.h"
#include "serve/json_number.h"
#include "serve/json_pattern.h"
#include "serve/json_schemas_test.h"
#include "serve/json_validator_test.h"

namespace fathom {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::shared_ptr<const JsonGrammar> compiled(const std::string& schema) {
  return std::make_shared<const JsonGrammar>(compile_json_schema(schema));
}

// How many bytes of `text` may come; one more when it may end there, too.
size_t readable(JsonMachine& machine, const std::string& text) {
  size_t read = 0;
  while (read < text.size() && machine.step(static_cast<uint8_t>(text[read]))) ++read;
  return read + (read == text.size() && machine.complete());
}

bool allows(const std::shared_ptr<const JsonGrammar>& grammar, const std::string& text) {
  JsonMachine machine(grammar);
  return readable(machine, text) == text.size() + 1;
}

std::string error_of(const std::string& schema) {
  try {
    compile_json_schema(schema);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(JsonSchema, Texts) {
  struct Case {
    std::string schema;
    std::vector<std::string> yes, no;
  };
  const std::vector<Case> cases{
      {R"({"type": "string"})",
       {R"("")", R"("a")", R"("é日😀")", R"("\"\\\/\b\f\n\r\t")", R"("\u00e9")", R"("\ud83d\uDE00")",
        R"("\uD7ff\uE000")"},
       {R"(")", R"("a)", R"("\x")", R"("\u12g4")", R"("\ud83d")", R"("\ud83dx")", R"("\ud83d\u0041")",
        R"("\ude00")", "\"\n\"", "\"\x7f\xff\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"",
        "\"\xe0\x80\x80\"", "\"\xf0\x80\x80\x80\"", "\"\xf5\x80\x80\x80\"", "\"\xc3\"", " \"a\"", "\"a\" "}},
      {R"({"type": "number"})",
       {"0", "-0", "1", "10.50", "-1.5e10", "1E+99", "123456789012345678"},
       {"01", "+1", ".5", "1.", "1e", "-", "1234567890123456789", "1e100", "0x1", "1e+", "--1"}},
      {R"({"type": "integer"})",
       {"0", "-1", "123456789012345678"},
       {"-0", "1.0", "1e3", "00", "1234567890123456789"}},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["b"]})",
       {R"({"b":1})", R"({"a":1,"b":2})", R"({"a": 1, "b": 2})"},
       {"{}", R"({"a":1})", R"({"b":1,"a":2})", R"({"b":1,"b":2})", R"({"b":1,})", R"({"b" :1})",
        R"({"b":  1})", R"({ "b":1})", R"({"b":1 })", R"({"b":1,"c":2})", R"({"\u0062":1})", R"({"b":1}})"}},
      {R"({"type": "object", "properties": {"na": {"const": 1}}, "additionalProperties": {"const": 2}})",
       {"{}", R"({"na":1})", R"({"na":1,"nab":2,"n":2})", R"({"":2})", R"({"x":2,"y":2})", R"({"é":2})"},
       {R"({"na":2})", R"({"x":2,"x":2})", R"({"x":2,"na":1})", R"({"na":1,"na":2})", R"({"a\u0062":2})",
        R"({"x":2,"y":2,"x":2})"}},
      {R"({"properties": {"gone": false}, "additionalProperties": true})",
       {R"({"gon":[1]})"},
       {R"({"gone":1})"}},
      {R"({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2})",
       {"[true]", "[true,false]", "[true, false]"},
       {"[]", "[true,]", "[true,true,true]", "[,true]", "[true  ]", "[true,  true]"}},
      {R"({"prefixItems": [{"const": 1}, {"const": 2}]})", {"[]", "[1]", "[1,2]"}, {"[2]", "[1,2,3]"}},
      {R"({"prefixItems": [{"const": 1}], "minItems": 2})", {"[1,{\"a\":[]}]", "[1,2,3]"}, {"[1]"}},
      {R"({"enum": ["a", "ab", 1, 12, null, [1, 2], {"k": "v"}]})",
       {R"("a")", R"("ab")", "1", "12", "null", "[1,2]", "[1, 2]", R"({"k":"v"})"},
       {R"("abc")", "2", "[1]", "{}", "nul", R"("")"}},
      {R"({"enum": ["a", 1, 1.5], "type": "number"})", {"1", "1.5"}, {R"("a")"}},
      {R"({"type": "string", "minLength": 2, "maxLength": 3})",
       {R"("ab")", R"("日本語")", R"("😀\ud83d\ude00")", R"("\n\"a")"},
       {R"("a")", R"("abcd")", R"("日")"}},
      {R"({"anyOf": [{"type": "array", "items": {"const": 1}}, {"type": "array", "items": {"const": 12}}]})",
       {"[]", "[1,1]", "[12,12]"},
       {"[1,12]", "[12,1]"}},
      {R"({"allOf": [{"type": ["string", "integer"]}, {"type": ["number", "null"]}]})",
       {"5"},
       {"\"\"", "null", "5.5"}},
      {R"({"allOf": [{"minimum": 3}, {"minimum": 5}], "type": "integer"})", {"5"}, {"3", "4"}},
      {R"({"type": "object"})",
       {R"({"a":{"b":[1,{"c":null}]},"d":"\u0000"})"},
       {"[]", "1", R"({"a":1,"a":1})"}},
  };
  for (const Case& one : cases) {
    const auto grammar = compiled(one.schema);
    for (const std::string& text : one.yes) EXPECT_TRUE(allows(grammar, text)) << one.schema << " " << text;
    for (const std::string& text : one.no) EXPECT_FALSE(allows(grammar, text)) << one.schema << " " << text;
  }
}

TEST(JsonSchema, WhatIsRefusedIsNamed) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "not JSON"},
      {"{", "not JSON"},
      {"[]", "a schema at the top: expected an object or a boolean, got array"},
      {R"({"properties": {"a/b": {"multipleOf": 2}}})",
       "'multipleOf' at /properties/a~1b: this keyword is not supported"},
      {R"({"items": {"not": {}}})", "'not' at /items"},
      {R"({"x-mine": 1})", "'x-mine' at the top"},
      {R"({"uniqueItems": true})", "'uniqueItems'"},
      {R"({"patternProperties": {}})", "'patternProperties'"},
      {R"({"if": {}})", "'if'"},
      {R"({"minProperties": 1})", "'minProperties'"},
      {R"({"type": "text"})", "'type' at the top: expected a type of JSON"},
      {R"({"type": 1})", "'type'"},
      {R"({"type": []})", "'type' at the top: expected at least one"},
      {R"({"properties": []})", "'properties' at the top: expected an object"},
      {R"({"properties": {"a": 1}})",
       "a schema at /properties/a: expected an object or a boolean, got number"},
      {R"({"required": "a"})", "'required' at the top: expected a list of names"},
      {R"({"required": [1]})", "'required'"},
      {R"({"items": [{}]})", "'items' at the top: a list is not supported"},
      {R"({"prefixItems": {}})", "'prefixItems'"},
      {R"({"minItems": -1})", "'minItems' at the top: expected a whole number"},
      {R"({"maxLength": 1.5})", "'maxLength'"},
      {R"({"minLength": 4, "maxLength": 3})", "'minLength' at the top: it is above 'maxLength'"},
      {R"({"minimum": "1"})", "'minimum' at the top: expected a number"},
      {R"({"type": "integer", "minimum": 5, "maximum": 4})", "a integer at the top: no number"},
      {R"({"type": "number", "exclusiveMinimum": 1, "maximum": 1})", "no number"},
      {R"({"type": "integer", "minimum": 1e30})", "beyond"},
      {R"({"type": "number", "minimum": 1e-30})", "too many digits"},
      {R"({"enum": []})", "'enum' at the top: expected a list"},
      {R"({"enum": ["a"], "minLength": 1})", "'minLength' at the top: it stands beside 'enum'"},
      {R"({"anyOf": []})", "'anyOf' at the top: expected a list"},
      {R"({"anyOf": [true], "oneOf": [true]})", "'oneOf' at the top: it stands beside"},
      {R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})",
       "a value may be of both alternative 0 and 1"},
      {R"({"oneOf": [{"type": "object", "properties": {"a": {"const": 1}}}, {"type": "object"}]})",
       "'oneOf'"},
      {R"({"oneOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]}, {"type": "string"}]})",
       "'oneOf'"},
      {R"({"allOf": [{"pattern": "a"}, {"pattern": "b"}]})", "'pattern' at the top: two of it"},
      {R"({"allOf": [{"additionalProperties": false}, {"properties": {"a": {}}}]})",
       "'additionalProperties'"},
      {R"x({"pattern": "a", "minLength": 2})x", "'minLength' at the top: it stands beside 'pattern'"},
      {R"x({"pattern": "(?=a)"})x", "'pattern' at the top: '(?' other than '(?:'"},
      {R"x({"pattern": "\\bword"})x", "'\\b' at character 0"},
      {R"x({"pattern": "(a)\\1"})x", "'\\1'"},
      {R"x({"pattern": "a{2,1}"})x", "count"},
      {R"x({"pattern": "[b-a]"})x", "range"},
      {R"x({"pattern": "a**"})x", "repetition"},
      {R"x({"pattern": "(a"})x", "'('"},
      {R"x({"pattern": "a)"})x", "')'"},
      {R"x({"pattern": "[]"})x", "it matches no string"},
      {R"({"format": "uri"})", "'format' at the top: the format \"uri\" is not supported"},
      {R"({"$ref": "http://x/y"})", "'$ref' at the top: expected a place in the same schema"},
      {R"({"$ref": "#/nowhere"})", "there is no \"#/nowhere\""},
      {R"({"$ref": "#/a b/~2"})", "there is no"},
      {"false", "allows no value"},
      {R"({"type": "object", "required": ["a"], "additionalProperties": false})", "allows no value"},
  };
  for (const auto& [schema, expected] : cases)
    EXPECT_NE(error_of(schema).find(expected), std::string::npos) << schema << ": " << error_of(schema);
}

std::string nested(const std::string& open, const std::string& inside, const std::string& close, int times) {
  std::string out = inside;
  for (int i = 0; i < times; ++i) out = open + out + close;
  return out;
}

// Each is refused, quickly: the work is counted.
TEST(JsonSchema, HostileSchemas) {
  const auto refused = [](const std::string& schema, const std::string& expected) {
    const std::string error = error_of(schema);
    EXPECT_NE(error.find(expected), std::string::npos) << schema.substr(0, 80) << ": " << error;
  };
  refused(R"({"const": 18446744073709551616})", "beyond 64 bits");
  refused(R"({"enum": [1, -9223372036854775809000]})", "beyond 64 bits");
  refused(R"({"$ref": "#"})", "allows no value");
  refused(R"({"anyOf": [{"$ref": "#"}]})", "allows no value");
  refused(R"({"allOf": [{"$ref": "#"}]})", "lead to each other");
  refused(R"({"$ref": "#", "minLength": 1})", "lead to each other");
  refused(R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})", "allows no value");
  refused(R"({"type": "array", "items": {"$ref": "#"}, "minItems": 1})", "allows no value");
  refused(nested("{\"items\":", "{}", "}", 100), "levels");
  refused("{\"enum\": [\"" + std::string(70000, 'a') + "\"]}", "bytes");
  refused("{\"enum\": [\"" + std::string(30000, 'a') + "\"]}", "more than 20000 states");
  refused(R"x({"pattern": "(a|b)*a(a|b){30}"})x", "states");
  refused(R"x({"pattern": "(((a{1000}){1000}){1000}){1000}"})x", "nodes");
  refused("{\"pattern\": \"" + nested("(", "a", ")", 100) + "\"}", "nested");
  // Each definition holds the one before it twice.
  std::string doubling = R"({"$ref": "#/$defs/d25", "$defs": {"d0": {"type": "object"})";
  for (int i = 1; i <= 25; ++i)
    doubling += ", \"d" + std::to_string(i) + "\": {\"allOf\": [{\"$ref\": \"#/$defs/d" +
                std::to_string(i - 1) + "\"}, {\"$ref\": \"#/$defs/d" + std::to_string(i - 1) + "\"}]}";
  refused(doubling + "}}", "steps");
  std::string many = "{\"oneOf\": [";
  for (int i = 0; i < 2000; ++i)
    many += (i ? ",{\"enum\":[" : "{\"enum\":[") + std::to_string(i) + "," + std::to_string(i + 5000) + "]}";
  refused(many + "]}", "steps");
}

// The same as alternatives: nothing to expand, each is compiled once.
TEST(JsonSchema, ManyReferencesAreCompiledOnce) {
  std::string doubling = R"({"$ref": "#/$defs/d60", "$defs": {"d0": {"type": "null"})";
  for (int i = 1; i <= 60; ++i) {
    const std::string before = "{\"$ref\": \"#/$defs/d" + std::to_string(i - 1) + "\"}";
    doubling += ", \"d" + std::to_string(i) + "\": {\"anyOf\": [" + before + "," + before +
                ",{\"type\":\"array\",\"items\":" + before + "}]}";
  }
  const auto grammar = compiled(doubling + "}}");
  EXPECT_LT(grammar->values.size(), 200u);
  EXPECT_TRUE(allows(grammar, "[[[null]],[]]"));
}

TEST(JsonSchema, DepthIsBounded) {
  const auto any = compiled("{}");
  EXPECT_TRUE(allows(any, nested("[", "", "]", 64)));
  EXPECT_FALSE(allows(any, nested("[", "", "]", 65)));
  EXPECT_TRUE(allows(any, nested("{\"a\":", "{}", "}", 63)));
  EXPECT_FALSE(allows(any, nested("{\"a\":", "{}", "}", 64)));
  // Whoever goes in must be able to come out: 62 nodes and the null in the last one.
  const auto list =
      compiled(R"({"type": "object", "properties": {"n": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
                                 "required": ["n"]})");
  EXPECT_TRUE(allows(list, nested("{\"n\":", "null", "}", 63)));
  JsonMachine machine(list);
  const std::string deep = nested("{\"n\":", "", "", 63);
  EXPECT_EQ(readable(machine, deep), deep.size());
  EXPECT_FALSE(machine.step('{'));
  EXPECT_TRUE(machine.step('n'));
  // Neither a key nor a comma leads to a value for which there is no room.
  const auto tree = compiled(
      R"({"type": "object", "properties": {"a": {"const": 1}, "n": {"$ref": "#"}}, "required": ["a"]})");
  JsonMachine inner(tree);
  const std::string deepest = nested("{\"a\":1,\"n\":", "{\"a\":1", "", 62);
  ASSERT_EQ(readable(inner, deepest), deepest.size());
  EXPECT_FALSE(inner.step(','));
  EXPECT_TRUE(inner.step('}'));
  const auto list_of_lists = compiled(R"({"prefixItems": [{"const": 1}, {"$ref": "#"}], "minItems": 1})");
  JsonMachine lists(list_of_lists);
  const std::string ones = nested("[1,", "[1", "", 62);
  ASSERT_EQ(readable(lists, ones), ones.size());
  EXPECT_FALSE(lists.step(','));
  EXPECT_TRUE(lists.step(']'));
}

// Ways are left out when there are too many, and what is left goes on.
TEST(JsonSchema, ManyWaysAreCut) {
  std::string schema = "{\"anyOf\": [";
  for (int i = 0; i < 60; ++i)
    schema += (i ? "," : "") + std::string("{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"maxItems\":") +
              std::to_string(i + 3) + "}";
  const auto grammar = compiled(schema + "]}");
  EXPECT_TRUE(allows(grammar, "[[],[[]]]"));
  JsonMachine machine(grammar);
  for (int i = 0; i < 64; ++i) ASSERT_TRUE(machine.step('['));
  for (int i = 0; i < 64; ++i) ASSERT_TRUE(machine.step(']'));
  EXPECT_TRUE(machine.complete());
}

// Against arithmetic, on all short texts of digits and on texts near the bounds.
TEST(JsonSchema, NumbersWithinBounds) {
  Rng rng(5);
  for (int i = 0; i < 60; ++i) {
    const bool integer = rng.below(2) == 0;
    const double scale = integer ? 1 : rng.below(2) == 0 ? 0.01 : 0.5;
    const double low = std::round(100 * scale * (rng.below(400) - 200.0)) / 100;
    const double high = std::round(100 * (low + scale * rng.below(300))) / 100;
    OrderedJson schema{{"type", integer ? "integer" : "number"}};
    if (rng.below(4) > 0) schema[rng.below(2) == 0 ? "minimum" : "exclusiveMinimum"] = low;
    if (rng.below(4) > 0) schema[rng.below(2) == 0 ? "maximum" : "exclusiveMaximum"] = high;
    const JsonValidator valid(schema.dump());
    if (!error_of(schema.dump()).empty()) {
      for (int value = -60000; value < 60000; value += 7)
        ASSERT_FALSE(valid(OrderedJson(value * 0.01).dump())) << schema;
      continue;
    }
    const auto grammar = compiled(schema.dump());
    for (int value = -30000; value <= 30000; value += 1 + static_cast<int>(rng.below(29))) {
      const std::string digits = std::to_string(std::abs(value) / 100),
                        cents = std::to_string(std::abs(value) % 100);
      const std::string whole = (value < 0 ? "-" : "") + digits;
      for (const std::string& text :
           {whole, whole + "." + cents, whole + ".0" + cents, whole + "." + cents + "0"}) {
        if (text == "-0" || text.find("-0.0") == 0) continue;
        const bool plain = text.find('.') == std::string::npos;
        const bool expected = (plain || !integer) && valid(text);
        ASSERT_EQ(allows(grammar, text), expected) << schema << " " << text;
      }
    }
  }
}

TEST(JsonSchema, Patterns) {
  struct Case {
    std::string pattern;
    std::vector<std::string> yes, no;  // contents of the string
  };
  const std::vector<Case> cases{
      {"^a.c$", {"abc", "aéc", "a😀c", "a\"c", "a\\c", "a\tc"}, {"ac", "a\nc", "abbc", "xabc"}},
      {"b", {"b", "abc", "\nb\n"}, {"", "a"}},
      {"^a|b$", {"a", "ax", "xb"}, {"xa", "bx"}},
      {"^[^a-z]*$", {"", "A9é", "\"\\"}, {"a", "Ab"}},
      {"^\\d{2,3}$", {"12", "123"}, {"1", "1234", "1a"}},
      {"^\\w+\\s\\S+$", {"a_1 é"}, {"a", "a b c"}},
      {"^[\\d\\-.]+$", {"1-2.3"}, {"a"}},
      {"^\\u00e9\\x41\\u{1F600}$", {"éA😀"}, {"é"}},
      {"^[α-ω]{2}$", {"αω"}, {"a", "α"}},
      {"^(?:ab?|c)*?$", {"", "abaca"}, {"b"}},
      {"^a{0}b{2}$", {"bb"}, {"abb", "b"}},
      {"^\\/\\.\\$$", {"/.$"}, {"/x$"}},
  };
  for (const Case& one : cases) {
    const auto grammar = compiled(OrderedJson{{"pattern", one.pattern}}.dump());
    for (const std::string& text : one.yes)
      EXPECT_TRUE(allows(grammar, OrderedJson(text).dump())) << one.pattern << " " << text;
    for (const std::string& text : one.no)
      EXPECT_FALSE(allows(grammar, OrderedJson(text).dump())) << one.pattern << " " << text;
  }
}

// What has been taken back leaves no trace: signatures and ends are those of the text alone.
TEST(JsonSchema, BytesAreTakenBack) {
  Rng rng(11);
  for (const std::string& schema : hundred_schemas()) {
    const auto grammar = compiled(schema);
    JsonMachine machine(grammar);
    for (int i = 0; i < 60; ++i) {
      if (rng.below(4) == 0) machine.back(rng.below(static_cast<uint32_t>(machine.text().size() + 1)));
      for (int tries = 0; tries < 300; ++tries) {
        const char* likely = "{}[]\":, 0123456789truefalsn-.abé";
        const auto byte =
            tries < 200 ? static_cast<uint8_t>(likely[rng.below(33)]) : static_cast<uint8_t>(rng.below(256));
        if (machine.step(byte)) break;
      }
      JsonMachine fresh(grammar);
      ASSERT_EQ(readable(fresh, machine.text()) - fresh.complete(), machine.text().size());
      std::string mine, other;
      machine.signature(mine);
      fresh.signature(other);
      ASSERT_EQ(mine, other) << schema << " " << machine.text();
      ASSERT_EQ(machine.complete(), fresh.complete());
    }
  }
}

}  // namespace
}  // namespace fathom
