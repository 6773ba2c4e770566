#include "serve/schema_document.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/format.h"
#include "base/json_depth.h"
#include "serve/json_number.h"
#include "serve/json_schema.h"

namespace fathom {
namespace {

using OrderedJson = nlohmann::ordered_json;
constexpr int kMostLinks = 64;  // references that lead to references, schemas that are joined inside others

constexpr std::string_view kAnnotations[] = {"title", "description", "default",      "examples", "$schema",
                                             "$id",   "$comment",    "deprecated",   "readOnly", "writeOnly",
                                             "$defs", "definitions", "discriminator"};
constexpr std::string_view kKeywords[] = {"type",
                                          "properties",
                                          "required",
                                          "additionalProperties",
                                          "items",
                                          "prefixItems",
                                          "minItems",
                                          "maxItems",
                                          "enum",
                                          "const",
                                          "anyOf",
                                          "oneOf",
                                          "allOf",
                                          "$ref",
                                          "minLength",
                                          "maxLength",
                                          "pattern",
                                          "format",
                                          "minimum",
                                          "maximum",
                                          "exclusiveMinimum",
                                          "exclusiveMaximum"};
constexpr std::string_view kTypes[] = {"null", "boolean", "integer", "number", "string", "array", "object"};

template <size_t N>
bool among(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

int64_t weight(const OrderedJson& json) {
  int64_t sum = 1;
  if (json.is_string()) return 1 + static_cast<int64_t>(json.get_ref<const std::string&>().size() / 16);
  if (json.is_structured()) {
    for (const OrderedJson& member : json) sum += weight(member);
  }
  return sum;
}

OrderedJson parsed(const std::string& text) {
  if (text.size() > kMostSchemaBytes)
    fail("JSON schema: expected at most {} bytes, got {}", kMostSchemaBytes, text.size());
  check_json_depth(text, "JSON schema");
  try {
    return OrderedJson::parse(text);
  } catch (const OrderedJson::exception& error) {
    fail("JSON schema: it is not JSON: {}", printable(error.what()));
  }
}

// "a~1b%25" as JSON pointers in URIs write it.
std::string percent_decoded(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool coded = text[i] == '%' && i + 2 < text.size() &&
                       std::isxdigit(static_cast<uint8_t>(text[i + 1])) &&
                       std::isxdigit(static_cast<uint8_t>(text[i + 2]));
    out.push_back(coded ? static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16)) : text[i]);
    if (coded) i += 2;
  }
  return out;
}

bool has_name(const OrderedJson& schema, const char* keyword, const std::string& name) {
  return schema.contains(keyword) && schema[keyword].is_object() && schema[keyword].contains(name);
}

bool requires_name(const OrderedJson& schema, const std::string& name) {
  if (!schema.contains("required") || !schema["required"].is_array()) return false;
  return std::find(schema["required"].begin(), schema["required"].end(), OrderedJson(name)) !=
         schema["required"].end();
}

// What `enum` or `const` lists; null: anything.
OrderedJson finite_values(const OrderedJson& schema) {
  if (schema.contains("const")) return OrderedJson::array({schema["const"]});
  return schema.contains("enum") && schema["enum"].is_array() ? schema["enum"] : OrderedJson();
}

// Whether one of the values is of the type.
bool may_be(const OrderedJson& finite, const std::vector<std::string>& types, const std::string& type) {
  if (!schema_type_allows(types, type)) return false;
  return finite.is_null() || std::any_of(finite.begin(), finite.end(), [&](const OrderedJson& value) {
           const std::string has = schema_type_of(value);
           return has == type || (has == "integer" && type == "number");
         });
}

// Joins `b`'s keyword into `a`, which has it with another value. Returns whether a value is left.
class Joiner {
 public:
  Joiner(OrderedJson& a, const OrderedJson& b, const std::string& where) : a_(a), b_(b), where_(where) {}

  bool join(const std::string& keyword) {
    OrderedJson& mine = a_[keyword];
    const OrderedJson& other = b_[keyword];
    if (mine == other) return true;
    if (keyword == "type") return join_types();
    if (keyword == "const") return false;
    if (keyword == "enum") return join_enums(mine, other);
    if (keyword == "properties") {
      join_properties(mine, other);
    } else if (keyword == "required") {
      join_required(mine, other);
    } else if (keyword.starts_with("min") || keyword == "exclusiveMinimum") {
      if (less(mine, other, keyword)) mine = other;
    } else if (keyword.starts_with("max") || keyword == "exclusiveMaximum") {
      if (less(other, mine, keyword)) mine = other;
    } else if (keyword == "items" && !a_.contains("prefixItems") && !b_.contains("prefixItems")) {
      join_schemas(mine, other);
    } else {
      refuse_schema("'" + keyword + "'", where_, "two of it hold there, which is not supported");
    }
    return true;
  }

 private:
  bool join_types() {
    const std::vector<std::string> mine = schema_types(a_, where_), other = schema_types(b_, where_);
    OrderedJson left = OrderedJson::array();
    for (const std::string& type : mine) {
      if (schema_type_allows(other, type)) left.push_back(type);
    }
    for (const std::string& type : other) {
      if (schema_type_allows(mine, type) &&
          std::find(left.begin(), left.end(), OrderedJson(type)) == left.end())
        left.push_back(type);
    }
    a_["type"] = left;
    return !left.empty();
  }
  bool join_enums(OrderedJson& mine, const OrderedJson& other) const {
    if (!mine.is_array() || !other.is_array()) refuse_schema("'enum'", where_, "expected a list");
    OrderedJson left = OrderedJson::array();
    for (const OrderedJson& value : mine) {
      if (std::find(other.begin(), other.end(), value) != other.end()) left.push_back(value);
    }
    mine = left;
    return !left.empty();
  }
  void join_properties(OrderedJson& mine, const OrderedJson& other) const {
    if (!mine.is_object() || !other.is_object()) refuse_schema("'properties'", where_, "expected an object");
    for (const auto& [name, schema] : other.items()) {
      if (!mine.contains(name))
        mine[name] = schema;
      else if (mine[name] != schema)
        join_schemas(mine[name], schema);
    }
  }
  // A list grows and does not nest.
  static void join_schemas(OrderedJson& mine, const OrderedJson& other) {
    const bool list =
        mine.is_object() && mine.size() == 1 && mine.contains("allOf") && mine["allOf"].is_array();
    if (!list) mine = OrderedJson{{"allOf", OrderedJson::array({mine})}};
    mine["allOf"].push_back(other);
  }
  void join_required(OrderedJson& mine, const OrderedJson& other) const {
    if (!mine.is_array() || !other.is_array()) refuse_schema("'required'", where_, "expected a list");
    for (const OrderedJson& name : other) {
      if (std::find(mine.begin(), mine.end(), name) == mine.end()) mine.push_back(name);
    }
  }
  bool less(const OrderedJson& a, const OrderedJson& b, const std::string& keyword) const {
    if (!a.is_number() || !b.is_number()) refuse_schema("'" + keyword + "'", where_, "expected a number");
    return Decimal::parse(a.dump()) < Decimal::parse(b.dump());
  }

  OrderedJson& a_;
  const OrderedJson& b_;
  const std::string& where_;
};

// `additionalProperties` speaks of the properties beside it alone.
void check_additional(const OrderedJson& a, const OrderedJson& b, const std::string& where) {
  for (const auto& [closed, other] : {std::pair{&a, &b}, std::pair{&b, &a}}) {
    if (!closed->contains("additionalProperties") || (*closed)["additionalProperties"] == true) continue;
    if (!other->contains("properties")) continue;
    for (const auto& member : (*other)["properties"].items()) {
      if (!has_name(*closed, "properties", member.key()))
        refuse_schema("'additionalProperties'", where,
                      "it meets a schema with other properties, which is not supported");
    }
  }
}

}  // namespace

void refuse_schema(const std::string& what, const std::string& where, const std::string& why) {
  fail("JSON schema: {} at {}: {}", printable(what), where.empty() ? "the top" : printable(where), why);
}

std::string schema_place(const std::string& where, const std::string& key) {
  std::string out = where + "/";
  for (const char c : key) out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return out;
}

std::string schema_type_of(const OrderedJson& value) {
  if (value.is_null()) return "null";
  if (value.is_boolean()) return "boolean";
  if (value.is_string()) return "string";
  if (value.is_array()) return "array";
  if (value.is_object()) return "object";
  return Decimal::parse(value.dump()).fraction.empty() ? "integer" : "number";
}

std::vector<std::string> schema_types(const OrderedJson& schema, const std::string& where) {
  std::vector<std::string> types;
  if (!schema.contains("type")) return types;
  const OrderedJson& type = schema["type"];
  const OrderedJson list = type.is_array() ? type : OrderedJson::array({type});
  for (const OrderedJson& name : list) {
    if (!name.is_string() || !among(kTypes, name.get_ref<const std::string&>()))
      refuse_schema("'type'", where,
                    "expected a type of JSON or a list of them, got " + printable(name.dump()));
    types.push_back(name);
  }
  if (types.empty()) refuse_schema("'type'", where, "expected at least one type");
  return types;
}

bool schema_type_allows(const std::vector<std::string>& types, const std::string& type) {
  const auto has = [&](const char* name) {
    return std::find(types.begin(), types.end(), name) != types.end();
  };
  return types.empty() || has(type.c_str()) || (type == "integer" && has("number"));
}

SchemaDocument::SchemaDocument(const std::string& text, CompileBudget& budget)
    : budget_(budget), root_(std::make_unique<OrderedJson>(parsed(text))) {}
SchemaDocument::~SchemaDocument() = default;

void SchemaDocument::charge(const OrderedJson& json) const {
  budget_.step(16 * weight(json));
}

OrderedJson SchemaDocument::checked(const OrderedJson& schema, const std::string& where) const {
  if (schema.is_boolean()) return schema;
  if (!schema.is_object())
    refuse_schema("a schema", where,
                  std::string("expected an object or a boolean, got ") + schema.type_name());
  OrderedJson out = OrderedJson::object();
  for (const auto& [keyword, value] : schema.items()) {
    if (among(kAnnotations, keyword) || (keyword == "uniqueItems" && value == false)) continue;
    if (!among(kKeywords, keyword))
      refuse_schema("'" + keyword + "'", where, "this keyword is not supported");
    charge(value);
    out[keyword] = value;
  }
  return out;
}

const OrderedJson& SchemaDocument::target(const OrderedJson& reference, const std::string& where,
                                          std::string* place) const {
  if (!reference.is_string() || !reference.get_ref<const std::string&>().starts_with('#'))
    refuse_schema("'$ref'", where,
                  "expected a place in the same schema (#/…), got " + printable(reference.dump()));
  *place = percent_decoded(reference.get<std::string>().substr(1));
  try {
    return std::as_const(*root_).at(OrderedJson::json_pointer(*place));
  } catch (const OrderedJson::exception&) {
    refuse_schema("'$ref'", where, "there is no " + printable(reference.dump()));
  }
}

OrderedJson SchemaDocument::plain(const OrderedJson& schema, const std::string& where, int links) const {
  if (links > kMostLinks)
    refuse_schema("a schema", where,
                  fmt::format("more than {} '$ref' and 'allOf' lead to each other", kMostLinks));
  budget_.step(100);
  OrderedJson rest = checked(schema, where);
  if (!rest.is_object()) return rest;
  std::vector<OrderedJson> others;
  if (rest.contains("$ref")) {
    std::string place;
    const OrderedJson& named = target(rest["$ref"], where, &place);
    others.push_back(plain(named, place, links + 1));
    rest.erase("$ref");
  }
  if (rest.contains("allOf")) {
    if (!rest["allOf"].is_array()) refuse_schema("'allOf'", where, "expected a list");
    for (size_t i = 0; i < rest["allOf"].size(); ++i)
      others.push_back(plain(rest["allOf"][i], where + "/allOf/" + std::to_string(i), links + 1));
    rest.erase("allOf");
  }
  for (const OrderedJson& other : others) rest = both(other, rest, where);
  return rest;
}

OrderedJson SchemaDocument::both(const OrderedJson& a, const OrderedJson& b, const std::string& where) const {
  if (a.is_boolean()) return a == true ? b : a;
  if (b.is_boolean()) return b == true ? a : b;
  charge(a);
  charge(b);
  check_additional(a, b, where);
  OrderedJson out = a;
  Joiner joiner(out, b, where);
  for (const auto& [keyword, value] : b.items()) {
    if (!out.contains(keyword))
      out[keyword] = value;
    else if (!joiner.join(keyword))
      return false;
  }
  if (out.contains("prefixItems") && (!a.contains("prefixItems") || !b.contains("prefixItems")) &&
      (a.contains("items") || b.contains("items")) && !(a.contains("prefixItems") ? a : b).contains("items"))
    refuse_schema("'items'", where, "it meets 'prefixItems' of another schema, which is not supported");
  return out;
}

bool SchemaDocument::disjoint(const OrderedJson& a, const OrderedJson& b, const std::string& where,
                              int depth) const {
  charge(a);
  charge(b);
  if (a == false || b == false) return true;
  if (a == true || b == true || depth > 8) return false;
  const OrderedJson mine = finite_values(a), other = finite_values(b);
  if (mine.is_array() && other.is_array()) {
    budget_.step(std::ssize(mine) * std::ssize(other));
    return std::none_of(mine.begin(), mine.end(), [&](const OrderedJson& value) {
      return std::find(other.begin(), other.end(), value) != other.end();
    });
  }
  const std::vector<std::string> types_a = schema_types(a, where), types_b = schema_types(b, where);
  const bool share_type = std::any_of(std::begin(kTypes), std::end(kTypes), [&](std::string_view name) {
    return may_be(mine, types_a, std::string(name)) && may_be(other, types_b, std::string(name));
  });
  if (!share_type) return true;
  const std::vector<std::string> object{"object"};
  if (types_a != object || types_b != object) return false;
  return tells_apart(a, b, where, depth) || tells_apart(b, a, where, depth);
}

// Whether a property that `a` requires shows that an object is not `b`'s.
bool SchemaDocument::tells_apart(const OrderedJson& a, const OrderedJson& b, const std::string& where,
                                 int depth) const {
  if (!a.contains("required") || !a["required"].is_array()) return false;
  for (const OrderedJson& name : a["required"]) {
    if (!name.is_string()) continue;
    const auto& key = name.get_ref<const std::string&>();
    const bool declared = has_name(b, "properties", key);
    if (!declared && b.contains("additionalProperties") && b["additionalProperties"] == false) return true;
    if (!declared || !requires_name(b, key) || !has_name(a, "properties", key)) continue;
    const std::string place = schema_place(where + "/properties", key);
    if (disjoint(plain(a["properties"][key], place), plain(b["properties"][key], place), place, depth + 1))
      return true;
  }
  return false;
}

}  // namespace fathom
