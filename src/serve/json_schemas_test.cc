#include "serve/json_schemas_test.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/rng.h"

namespace fathom {
namespace {

const std::vector<std::string> kWrittenSchemas{
    R"({"type": "object"})",
    R"({})",
    R"(true)",
    R"({"type": "string"})",
    R"({"type": "number"})",
    R"({"type": ["integer", "null"]})",
    R"({"enum": ["red", "green", "blue", 1, 12, 120, null, true, [1, "a"], {"k": {"l": []}}]})",
    R"({"const": {"ключ": "значение", "quote\"d": "back\\slash\n"}})",
    R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0,
        "maximum": 150}}, "required": ["name", "age"], "additionalProperties": false})",
    R"({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}, "c": {"type": "number"}},
        "required": ["b"]})",
    R"({"type": "object", "properties": {"na": {"type": "integer"}, "name": {"type": "integer"}, "n": {"type":
        "integer"}}, "additionalProperties": {"type": "boolean"}})",
    R"({"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}, "maxItems": 3}})",
    R"({"type": "object", "properties": {"gone": false, "here": true}, "additionalProperties": {"type": "integer"}})",
    R"({"type": "object", "required": ["x", "y"]})",
    R"({"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 5}, "minItems": 1, "maxItems": 4})",
    R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string", "maxLength": 0}], "items": false})",
    R"({"type": "array", "prefixItems": [{"const": 1}], "items": {"const": "z"}, "minItems": 2, "maxItems": 6})",
    R"({"type": "string", "enum": ["naïve", "日本語", "emoji 😀", "tab\t", "", "/slash"]})",
    R"({"type": "string", "minLength": 3, "maxLength": 3})",
    R"({"type": "string", "pattern": "^[A-Z]{3}-[0-9]{2,4}$", "examples": ["ABC-12", "XYZ-9999"]})",
    R"({"type": "string", "pattern": "^(?:ab|cd)+x?$", "examples": ["ab", "cdabx"]})",
    R"({"type": "string", "pattern": "b[^a-y]", "examples": ["bz", "xxb!yy"]})",
    R"({"type": "string", "format": "date", "examples": ["2024-02-29", "1999-12-31"]})",
    R"({"type": "string", "format": "date-time", "examples": ["2024-02-29T23:59:59Z", "0001-01-01T00:00:00.5+01:30"]})",
    R"({"type": "string", "format": "time", "examples": ["12:00:00Z"]})",
    R"({"type": "string", "format": "uuid", "examples": ["123e4567-e89b-12d3-a456-426614174000"]})",
    R"({"type": "string", "format": "ipv4", "examples": ["0.0.0.0", "255.255.255.255", "19.9.99.1"]})",
    R"({"type": "string", "format": "ipv6", "examples": ["1:2:3:4:5:6:7:8"]})",
    R"({"type": "string", "format": "email", "examples": ["a.b@c.de"]})",
    R"({"type": "string", "format": "hostname", "examples": ["localhost", "a-b.example.org"]})",
    R"({"type": "string", "format": "duration", "examples": ["P1Y2M3D", "PT5M", "P2W"]})",
    R"({"type": "integer", "minimum": -13, "maximum": 207})",
    R"({"type": "integer", "exclusiveMinimum": -5, "exclusiveMaximum": 5})",
    R"({"type": "integer", "minimum": 0.5, "maximum": 1e3})",
    R"({"type": "integer", "maximum": -9})",
    R"({"type": "number", "minimum": -1.5, "maximum": 2.25})",
    R"({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1})",
    R"({"type": "number", "minimum": 99.5})",
    R"({"type": "number", "exclusiveMaximum": -0.125})",
    R"({"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "object", "properties": {"v": {"type": "null"}}}]})",
    R"({"anyOf": [{"type": "object", "properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}, "required":
        ["kind", "x"]}, {"type": "object", "properties": {"kind": {"const": "ab"}, "y": {"type": "string"}},
        "required": ["kind"]}]})",
    R"({"oneOf": [{"type": "object", "properties": {"t": {"const": 1}}, "required": ["t"]}, {"type": "object",
        "properties": {"t": {"const": 2}, "u": {"type": "boolean"}}, "required": ["t"]}, {"type": "null"}]})",
    R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "anyOf": [{"properties": {"b":
        {"type": "integer"}}, "required": ["b"]}, {"properties": {"c": {"type": "string", "maxLength": 2}}}]})",
    R"({"allOf": [{"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"type": "integer", "maximum": 12}, "b": {"type": "boolean"}}}]})",
    R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"}, "next":
        {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["v", "next"],
        "additionalProperties": false}}})",
    R"({"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}, "required":
        ["children"]})",
    R"({"type": "object", "properties": {"p": {"description": "a point", "$ref": "#/definitions/p"}}, "required":
        ["p"], "definitions": {"p": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}}})",
    R"({"anyOf": [{"type": "array", "items": {"$ref": "#"}, "maxItems": 2}, {"type": "array", "items": {"$ref": "#"},
        "maxItems": 3}, {"const": 0}]})",
};

// Draws schemas.
class SchemaDrawer {
 public:
  using OrderedJson = nlohmann::ordered_json;
  explicit SchemaDrawer(uint64_t seed) : rng_(seed) {}

  OrderedJson draw(int depth) {
    switch (rng_.below(depth > 0 ? 10 : 6)) {
      case 0:
        return literal_list();
      case 1:
        return integer();
      case 2:
        return number();
      case 3:
      case 4:
        return string();
      case 5:
        return OrderedJson{{"type", pick({"boolean", "null", "string", "integer"})}};
      case 6:
        return array(depth);
      case 7:
        return alternatives(depth);
      default:
        return object(depth);
    }
  }

  std::string word() {
    std::string out;
    for (uint32_t i = 0; i <= rng_.below(3); ++i)
      out += pick({"a", "b", "na", "me", "é", "日", "😀", " ", "\"", "\\", "\n", "_", "0", "/"});
    return out;
  }

 private:
  std::string pick(const std::vector<std::string>& from) {
    return from[rng_.below(static_cast<uint32_t>(from.size()))];
  }
  bool maybe() { return rng_.below(2) == 0; }
  int64_t whole() {
    const int64_t limit = maybe() ? 20 : maybe() ? 3000 : 2'000'000'000;
    return static_cast<int64_t>(rng_.below(static_cast<uint32_t>(limit))) - limit / 2;
  }

  OrderedJson literal_list() {
    OrderedJson list = OrderedJson::array();
    for (uint32_t i = 0; i <= rng_.below(6); ++i) {
      const uint32_t kind = rng_.below(5);
      list.push_back(kind == 0   ? OrderedJson(whole())
                     : kind == 1 ? OrderedJson(0.25 * static_cast<double>(whole()))
                     : kind == 2 ? OrderedJson{{word(), word()}}
                                 : OrderedJson(word()));
    }
    return OrderedJson{{"enum", list}};
  }
  OrderedJson integer() {
    OrderedJson schema{{"type", "integer"}};
    const int64_t low = whole(), high = low + 2 + rng_.below(maybe() ? 30 : 100000);
    if (maybe()) schema[maybe() ? "minimum" : "exclusiveMinimum"] = low;
    if (maybe()) schema[maybe() ? "maximum" : "exclusiveMaximum"] = high;
    return schema;
  }
  OrderedJson number() {
    OrderedJson schema{{"type", "number"}};
    const double low = 0.125 * static_cast<double>(whole()), high = low + 0.5 * (1 + rng_.below(100));
    if (maybe()) schema[maybe() ? "minimum" : "exclusiveMinimum"] = low;
    if (maybe()) schema[maybe() ? "maximum" : "exclusiveMaximum"] = high;
    return schema;
  }
  OrderedJson string() {
    OrderedJson schema{{"type", "string"}, {"description", word()}};
    const uint32_t low = rng_.below(4);
    if (maybe()) schema["minLength"] = low;
    if (maybe()) schema["maxLength"] = low + rng_.below(8);
    return schema;
  }
  OrderedJson array(int depth) {
    OrderedJson schema{{"type", "array"}, {"items", draw(depth - 1)}};
    const uint32_t low = rng_.below(3);
    if (maybe()) schema["minItems"] = low;
    if (maybe()) schema["maxItems"] = low + rng_.below(3);
    if (rng_.below(4) == 0) schema["prefixItems"] = OrderedJson::array({draw(depth - 1)});
    return schema;
  }
  OrderedJson alternatives(int depth) {
    OrderedJson list = OrderedJson::array();
    for (uint32_t i = 0; i <= rng_.below(3); ++i) list.push_back(draw(depth - 1));
    return OrderedJson{{"anyOf", list}};
  }
  OrderedJson object(int depth) {
    OrderedJson properties = OrderedJson::object(), required = OrderedJson::array();
    for (uint32_t i = 0; i < rng_.below(5); ++i) {
      const std::string name = word();
      properties[name] = draw(depth - 1);
      if (maybe()) required.push_back(name);
    }
    OrderedJson schema{{"type", "object"}, {"properties", properties}, {"required", required}};
    if (maybe()) schema["additionalProperties"] = maybe() ? OrderedJson(false) : draw(depth - 1);
    return schema;
  }

  Rng rng_;
};

// Draws values of a schema, in the layout of docs/structured_output.md. None where it does not know how.
class ValueDrawer {
 public:
  using OrderedJson = nlohmann::ordered_json;
  ValueDrawer(const OrderedJson& root, uint64_t seed) : root_(root), rng_(seed) {}
  std::optional<OrderedJson> draw() { return of(root_, 0); }

 private:
  uint32_t below(size_t bound) { return rng_.below(static_cast<uint32_t>(bound)); }

  std::optional<OrderedJson> of(const OrderedJson& schema, int depth) {
    if (depth > 12 || schema == false) return {};
    if (schema == true || schema.empty()) return any(depth);
    if (schema.contains("examples")) return schema["examples"][below(schema["examples"].size())];
    if (schema.contains("allOf") || (schema.contains("anyOf") && schema.size() > 1)) return {};
    if (schema.contains("$ref"))
      return of(root_.at(OrderedJson::json_pointer(schema["$ref"].get<std::string>().substr(1))), depth);
    for (const char* keyword : {"anyOf", "oneOf"}) {
      if (schema.contains(keyword)) return of(schema[keyword][below(schema[keyword].size())], depth + 1);
    }
    if (schema.contains("enum")) return schema["enum"][below(schema["enum"].size())];
    if (schema.contains("const")) return schema["const"];
    const OrderedJson& types = schema["type"];
    return typed(schema, types.is_array() ? types[below(types.size())] : types, depth);
  }
  std::optional<OrderedJson> any(int depth) {
    static const std::vector<std::string> kTypes{"null",   "boolean", "integer", "number",
                                                 "string", "object",  "array"};
    return typed(OrderedJson::object(), kTypes[below(depth > 3 ? 5 : 7)], depth);
  }
  std::optional<OrderedJson> typed(const OrderedJson& schema, const std::string& type, int depth) {
    if (type == "null") return OrderedJson();
    if (type == "boolean") return OrderedJson(below(2) == 0);
    if (type == "integer") return integer(schema);
    if (type == "number") return number(schema);
    if (type == "string") return string(schema);
    return type == "array" ? array(schema, depth) : object(schema, depth);
  }
  std::optional<OrderedJson> integer(const OrderedJson& schema) {
    const double low = limit(schema, "minimum", "exclusiveMinimum", -1e9),
                 high = limit(schema, "maximum", "exclusiveMaximum", 1e9);
    auto value = static_cast<int64_t>(std::ceil(low + (high - low) * rng_.uniform_double()));
    if (below(3) == 0) value = static_cast<int64_t>(std::ceil(low));
    if (below(3) == 0) value = static_cast<int64_t>(std::floor(high));
    if (static_cast<double>(value) > high || !inside(schema, static_cast<double>(value))) return {};
    return OrderedJson(value);
  }
  std::optional<OrderedJson> number(const OrderedJson& schema) {
    const double low = limit(schema, "minimum", "exclusiveMinimum", -1e5),
                 high = limit(schema, "maximum", "exclusiveMaximum", 1e5);
    double value = low + (high - low) * rng_.uniform_double();
    value = std::round(value * 1000) / 1000;
    if (below(4) == 0) value = low;
    if (below(4) == 0) value = high;
    if (value < low || value > high || !inside(schema, value)) return {};
    return OrderedJson(value);
  }
  static double limit(const OrderedJson& schema, const char* closed, const char* open, double otherwise) {
    return schema.contains(closed) ? schema[closed].get<double>()
           : schema.contains(open) ? schema[open].get<double>()
                                   : otherwise;
  }
  static bool inside(const OrderedJson& schema, double value) {
    return !(schema.contains("exclusiveMinimum") && value <= schema["exclusiveMinimum"].get<double>()) &&
           !(schema.contains("exclusiveMaximum") && value >= schema["exclusiveMaximum"].get<double>());
  }
  OrderedJson string(const OrderedJson& schema) {
    static const std::vector<std::string> kChars{"a",  "Z",  " ",  "9",    "é", "日", "😀",
                                                 "\"", "\\", "\n", "\x01", "/", "{",  "the"};
    const uint32_t low = schema.value("minLength", 0u), high = schema.value("maxLength", low + 12);
    const uint32_t wanted = low + below(high - low + 1);
    std::string text;
    uint32_t count = 0;
    while (count < wanted) {
      const std::string& next = kChars[below(kChars.size())];
      const uint32_t size = next == "the" ? 3 : 1;
      if (count + size > wanted) continue;
      text += next;
      count += size;
    }
    return text;
  }
  std::optional<OrderedJson> array(const OrderedJson& schema, int depth) {
    const size_t prefix = schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
    const bool closed = schema.contains("prefixItems") && !schema.contains("items");
    const uint32_t low = schema.value("minItems", 0u);
    uint32_t high = schema.value("maxItems", low + 3);
    if (closed || (schema.contains("items") && schema["items"] == false))
      high = std::min<uint32_t>(high, static_cast<uint32_t>(prefix));
    if (high < low) return {};
    OrderedJson out = OrderedJson::array();
    const uint32_t wanted = depth > 4 ? low : low + below(high - low + 1);
    for (uint32_t i = 0; i < wanted; ++i) {
      const auto item = i < prefix                 ? of(schema["prefixItems"][i], depth + 1)
                        : schema.contains("items") ? of(schema["items"], depth + 1)
                                                   : any(depth + 1);
      if (!item) return {};
      out.push_back(*item);
    }
    return out;
  }
  std::optional<OrderedJson> object(const OrderedJson& schema, int depth) {
    const OrderedJson properties = schema.value("properties", OrderedJson::object()),
                      required = schema.value("required", OrderedJson::array());
    OrderedJson out = OrderedJson::object();
    for (const auto& [name, inner] : properties.items()) {
      const bool needed = std::find(required.begin(), required.end(), OrderedJson(name)) != required.end();
      if (!needed && (inner == false || depth > 4 || below(2) == 0)) continue;
      const auto value = of(inner, depth + 1);
      if (!value && needed) return {};
      if (value) out[name] = *value;
    }
    for (const OrderedJson& name : required) {
      if (!properties.contains(name.get_ref<const std::string&>())) out[name.get<std::string>()] = 1;
    }
    const bool more = schema.contains("additionalProperties") ? schema["additionalProperties"] != false
                                                              : !schema.contains("properties");
    for (const char* name : {"other", "naïve", "", "x y", "name!"}) {
      if (!more || depth > 3 || below(2) == 0) continue;
      const auto value = schema.contains("additionalProperties")
                             ? of(schema["additionalProperties"], depth + 1)
                             : any(depth + 1);
      if (value && !properties.contains(name)) out[name] = *value;
    }
    return out;
  }

  const OrderedJson& root_;
  Rng rng_;
};

// JSON as Python's json.dumps writes it.
std::string spaced(const nlohmann::ordered_json& value) {
  std::string out;
  const auto separated = [&](char open, char close, auto&& member) {
    out += open;
    for (auto it = value.begin(); it != value.end(); ++it) {
      if (it != value.begin()) out += ", ";
      member(it);
    }
    out += close;
  };
  if (value.is_object())
    separated('{', '}',
              [&](auto& it) { out += nlohmann::ordered_json(it.key()).dump() + ": " + spaced(it.value()); });
  else if (value.is_array())
    separated('[', ']', [&](auto& it) { out += spaced(*it); });
  else
    out += value.dump();
  return out;
}

}  // namespace

std::vector<std::string> hundred_schemas() {
  std::vector<std::string> schemas = kWrittenSchemas;
  SchemaDrawer drawer(17);
  while (schemas.size() < 120) schemas.push_back(drawer.draw(3).dump());
  return schemas;
}

std::optional<std::string> draw_value(const std::string& schema, uint64_t seed) {
  const auto root = nlohmann::ordered_json::parse(schema);
  const std::optional<nlohmann::ordered_json> value = ValueDrawer(root, seed).draw();
  if (!value) return {};
  return seed % 2 == 0 ? value->dump() : spaced(*value);
}

}  // namespace fathom
