#include "serve/json_schema.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/format.h"
#include "serve/json_number.h"
#include "serve/json_pattern.h"
#include "serve/schema_document.h"

namespace fathom {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Kind = JsonGrammar::Kind;
using Part = JsonGrammar::Part;
using PartId = JsonGrammar::PartId;
using ValueId = JsonGrammar::ValueId;

// Which type a keyword speaks of, where a schema does not say its type.
const std::pair<const char*, const char*> kTypeOfKeyword[] = {
    {"properties", "object"}, {"required", "object"},         {"additionalProperties", "object"},
    {"items", "array"},       {"prefixItems", "array"},       {"minItems", "array"},
    {"maxItems", "array"},    {"minLength", "string"},        {"maxLength", "string"},
    {"pattern", "string"},    {"format", "string"},           {"minimum", "number"},
    {"maximum", "number"},    {"exclusiveMinimum", "number"}, {"exclusiveMaximum", "number"}};

class SchemaCompiler {
 public:
  explicit SchemaCompiler(const std::string& text) : document_(text, budget_) {}

  JsonGrammar run() {
    grammar_.root = value(document_.root(), "");
    while (!waiting_.empty()) {
      const Waiting next = std::move(waiting_.front());
      waiting_.pop_front();
      compile(next.id, next.schema, next.where);
    }
    grammar_.finish(budget_);
    if (grammar_.values[grammar_.root].height > JsonGrammar::kMostDepth)
      fail("JSON schema: it allows no value of at most {} levels", JsonGrammar::kMostDepth);
    return std::move(grammar_);
  }

 private:
  struct Waiting {
    ValueId id;
    OrderedJson schema;
    std::string where;
  };

  // The values that a schema allows; equal schemas are compiled once, and later: they may hold each other.
  ValueId value(const OrderedJson& schema, const std::string& where) {
    OrderedJson checked = document_.checked(schema, where);
    std::string key = checked.dump();
    budget_.step(16 + std::ssize(key));
    const auto [at, is_new] = values_.try_emplace(std::move(key), 0);
    if (!is_new) return at->second;
    budget_.states();
    at->second = grammar_.add_value();
    waiting_.push_back({at->second, std::move(checked), where});
    return at->second;
  }

  void compile(ValueId id, const OrderedJson& schema, const std::string& where) {
    if (schema.is_boolean()) {
      if (schema == true) join(id, value(OrderedJson::object(), where));
    } else if (schema.contains("$ref") && schema.size() == 1) {
      std::string place;
      const OrderedJson& named = document_.target(schema["$ref"], where, &place);
      join(id, value(named, place));
    } else if (schema.contains("$ref") || schema.contains("allOf")) {
      join(id, value(document_.plain(schema, where), where));
    } else if (schema.contains("anyOf") || schema.contains("oneOf")) {
      alternatives(id, schema, where);
    } else if (schema.contains("enum") || schema.contains("const")) {
      literals(id, schema, where);
    } else {
      for (const std::string& type : types_of(schema, where)) typed(id, type, schema, where);
    }
  }

  void join(ValueId id, ValueId other) { grammar_.values[id].same_as.push_back(other); }
  void add(ValueId id, Part part) {
    budget_.states(1 + std::ssize(part.properties) + std::ssize(part.prefix));
    const PartId made = grammar_.add_part(std::move(part));
    grammar_.values[id].parts.push_back(made);
  }
  // A part that depends on nothing but its name.
  template <class Make>
  void add_shared(ValueId id, const std::string& name, Make&& make) {
    if (!shared_.contains(name)) {
      budget_.states();
      shared_[name] = grammar_.add_part(make());
    }
    grammar_.values[id].parts.push_back(shared_[name]);
  }

  void alternatives(ValueId id, const OrderedJson& schema, const std::string& where) {
    const std::string keyword = schema.contains("anyOf") ? "anyOf" : "oneOf";
    if (keyword == "anyOf" && schema.contains("oneOf"))
      refuse_schema("'oneOf'", where, "it stands beside 'anyOf', which is not supported");
    const OrderedJson& list = schema[keyword];
    if (!list.is_array() || list.empty())
      refuse_schema("'" + keyword + "'", where, "expected a list of schemas");
    OrderedJson rest = schema;
    rest.erase(keyword);
    std::vector<OrderedJson> plain;
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string place = where + "/" + keyword + "/" + std::to_string(i);
      if (rest.empty()) join(id, value(list[i], place));
      if (rest.empty() && keyword == "anyOf") continue;
      plain.push_back(document_.both(rest, document_.plain(list[i], place), place));
      if (!rest.empty()) join(id, value(plain.back(), place));
    }
    if (keyword == "oneOf") check_disjoint(plain, where);
  }

  void check_disjoint(const std::vector<OrderedJson>& schemas, const std::string& where) const {
    for (size_t i = 0; i < schemas.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (!document_.disjoint(schemas[j], schemas[i], where))
          refuse_schema(
              "'oneOf'", where,
              fmt::format("a value may be of both alternative {} and {}, which is supported as 'anyOf' "
                          "only",
                          j, i));
      }
    }
  }

  void literals(ValueId id, const OrderedJson& schema, const std::string& where) {
    for (const auto& member : schema.items()) {
      if (member.key() != "enum" && member.key() != "const" && member.key() != "type")
        refuse_schema("'" + member.key() + "'", where,
                      "it stands beside 'enum' or 'const', which is not supported");
    }
    const std::vector<std::string> types = schema_types(schema, where);
    if (schema.contains("enum") && (!schema["enum"].is_array() || schema["enum"].empty()))
      refuse_schema("'enum'", where, "expected a list of values");
    const OrderedJson list = schema.contains("enum") ? schema["enum"] : OrderedJson::array({schema["const"]});
    std::vector<std::string> texts;
    for (const OrderedJson& value : list) {
      if (!schema_type_allows(types, schema_type_of(value))) continue;
      if (schema.contains("const") && value != schema["const"]) continue;
      refuse_huge(value, where);
      if (value.is_structured())
        composite(id, value, where);
      else
        texts.push_back(value.is_string() ? json_quoted(value.get_ref<const std::string&>()) : value.dump());
    }
    if (!texts.empty()) add(id, {.kind = Kind::kDfa, .dfa = dfa_of(texts)});
  }

  // The parser makes them floats, which are other numbers.
  static void refuse_huge(const OrderedJson& value, const std::string& where) {
    if (!value.is_number_float()) return;
    const auto number = value.get<double>();
    if (std::abs(number) >= 0x1p63 && number == std::floor(number))
      refuse_schema("'enum' or 'const'", where, "a whole number beyond 64 bits is not supported");
  }

  ByteDfa dfa_of(const std::vector<std::string>& texts) {
    ByteNfa nfa(budget_);
    const ByteNfa::Node start = nfa.add(), end = nfa.add();
    for (const std::string& text : texts) nfa.path(start, text, end);
    return ByteDfa(nfa, start, end);
  }

  // One object or list.
  void composite(ValueId id, const OrderedJson& constant, const std::string& where) {
    Part part;
    part.kind = constant.is_object() ? Kind::kObject : Kind::kArray;
    for (const auto& member : constant.items()) {
      const ValueId inside = value(OrderedJson{{"const", member.value()}}, where);
      if (constant.is_object())
        part.properties.push_back(property(member.key(), inside, true));
      else
        part.prefix.push_back(inside);
    }
    if (constant.is_array()) part.least = part.most = static_cast<uint32_t>(constant.size());
    add(id, std::move(part));
  }

  static JsonGrammar::Property property(const std::string& name, ValueId value, bool required) {
    return {name, json_quoted(name).substr(1), value, required};
  }

  static std::vector<std::string> types_of(const OrderedJson& schema, const std::string& where) {
    std::vector<std::string> types = schema_types(schema, where);
    const auto add = [&](const char* type) {
      if (std::find(types.begin(), types.end(), type) == types.end()) types.push_back(type);
    };
    if (!schema.contains("type")) {
      for (const auto& [keyword, type] : kTypeOfKeyword) {
        if (schema.contains(keyword)) add(type);
      }
      if (types.empty()) types = {"null", "boolean", "number", "string", "array", "object"};
    }
    if (std::find(types.begin(), types.end(), "number") != types.end()) std::erase(types, "integer");
    return types;
  }

  void typed(ValueId id, const std::string& type, const OrderedJson& schema, const std::string& where) {
    if (type == "object") return object(id, schema, where);
    if (type == "array") return array(id, schema, where);
    if (type == "string") return string(id, schema, where);
    if (type == "integer" || type == "number") return number(id, type, schema, where);
    const std::vector<std::string> texts =
        type == "null" ? std::vector<std::string>{"null"} : std::vector<std::string>{"true", "false"};
    add_shared(id, type, [&] { return Part{.kind = Kind::kDfa, .dfa = dfa_of(texts)}; });
  }

  void string(ValueId id, const OrderedJson& schema, const std::string& where) {
    const auto [least, most] = bounds(schema, "minLength", "maxLength", where);
    const bool pattern = schema.contains("pattern"), format = schema.contains("format");
    if (!pattern && !format) return add(id, {.kind = Kind::kString, .least = least, .most = most});
    const std::string keyword = pattern ? "pattern" : "format";
    if (pattern && format)
      refuse_schema("'format'", where, "it stands beside 'pattern', which is not supported");
    for (const char* length : {"minLength", "maxLength"}) {
      if (schema.contains(length))
        refuse_schema(std::string("'") + length + "'", where,
                      "it stands beside '" + keyword + "', which is not supported");
    }
    if (!schema[keyword].is_string()) refuse_schema("'" + keyword + "'", where, "expected a string");
    auto text = schema[keyword].get<std::string>();
    if (format) text = format_pattern(schema["format"].get_ref<const std::string&>());
    if (format && text.empty())
      refuse_schema("'format'", where,
                    "the format " + printable(schema["format"].dump()) + " is not supported");
    const std::string place =
        fmt::format("JSON schema: '{}' at {}", keyword, where.empty() ? "the top" : where);
    add_shared(id, keyword + " " + text,
               [&] { return Part{.kind = Kind::kDfa, .dfa = pattern_dfa(text, printable(place), budget_)}; });
  }

  // A pair of limits that are counts.
  static std::pair<uint32_t, uint32_t> bounds(const OrderedJson& schema, const char* low, const char* high,
                                              const std::string& where) {
    const auto read = [&](const char* keyword, uint32_t otherwise) {
      if (!schema.contains(keyword)) return otherwise;
      const OrderedJson& value = schema[keyword];
      const bool whole = value.is_number() && schema_type_of(value) == "integer" && value.get<double>() >= 0;
      if (!whole)
        refuse_schema(std::string("'") + keyword + "'", where,
                      "expected a whole number that is not negative, got " + printable(value.dump()));
      return static_cast<uint32_t>(std::min(value.get<double>(), 4e9));
    };
    const uint32_t least = read(low, 0), most = read(high, JsonGrammar::kUnbounded);
    if (least > most)
      refuse_schema(std::string("'") + low + "'", where, std::string("it is above '") + high + "'");
    return {least, most};
  }

  void number(ValueId id, const std::string& type, const OrderedJson& schema, const std::string& where) {
    const std::string place =
        "JSON schema: a " + type + " at " + (where.empty() ? "the top" : printable(where));
    const NumberRange range{bound(schema, "minimum", "exclusiveMinimum", true, where),
                            bound(schema, "maximum", "exclusiveMaximum", false, where)};
    const auto text = [](const std::optional<NumberBound>& bound) {
      return bound ? bound->value.text() + (bound->open ? "o" : "c") : std::string("-");
    };
    add_shared(id, type + text(range.low) + " " + text(range.high), [&] {
      return Part{
          .kind = Kind::kDfa,
          .dfa = type == "integer" ? integer_dfa(range, place, budget_) : number_dfa(range, place, budget_)};
    });
  }

  // The tighter of two limits.
  static std::optional<NumberBound> bound(const OrderedJson& schema, const char* closed, const char* open,
                                          bool is_low, const std::string& where) {
    std::optional<NumberBound> tightest;
    for (const char* keyword : {closed, open}) {
      if (!schema.contains(keyword)) continue;
      if (!schema[keyword].is_number())
        refuse_schema(std::string("'") + keyword + "'", where,
                      "expected a number, got " + printable(schema[keyword].dump()));
      const NumberBound bound{Decimal::parse(schema[keyword].dump()), keyword == open};
      const bool looser =
          tightest && (is_low ? bound.value < tightest->value : tightest->value < bound.value);
      if (!looser) tightest = bound;
    }
    return tightest;
  }

  void array(ValueId id, const OrderedJson& schema, const std::string& where) {
    Part part;
    part.kind = Kind::kArray;
    std::tie(part.least, part.most) = bounds(schema, "minItems", "maxItems", where);
    if (schema.contains("prefixItems")) {
      const OrderedJson& list = schema["prefixItems"];
      if (!list.is_array()) refuse_schema("'prefixItems'", where, "expected a list of schemas");
      for (size_t i = 0; i < list.size(); ++i)
        part.prefix.push_back(value(list[i], where + "/prefixItems/" + std::to_string(i)));
    }
    if (schema.contains("items")) {
      if (schema["items"].is_array())
        refuse_schema("'items'", where, "a list is not supported: 'prefixItems' says the same");
      part.items = value(schema["items"], where + "/items");
    } else if (part.prefix.empty() || part.least > part.prefix.size()) {
      part.items = value(OrderedJson::object(), where);
    }
    add(id, std::move(part));
  }

  void object(ValueId id, const OrderedJson& schema, const std::string& where) {
    Part part;
    part.kind = Kind::kObject;
    const OrderedJson properties =
        schema.contains("properties") ? schema["properties"] : OrderedJson::object();
    const OrderedJson required = schema.contains("required") ? schema["required"] : OrderedJson::array();
    const bool names =
        required.is_array() && std::all_of(required.begin(), required.end(),
                                           [](const OrderedJson& name) { return name.is_string(); });
    if (!properties.is_object()) refuse_schema("'properties'", where, "expected an object");
    if (!names) refuse_schema("'required'", where, "expected a list of names");
    budget_.step(std::ssize(properties) * (1 + std::ssize(required)));
    for (const auto& member : properties.items()) {
      const bool needed =
          std::find(required.begin(), required.end(), OrderedJson(member.key())) != required.end();
      const std::string place = schema_place(where + "/properties", member.key());
      part.properties.push_back(property(member.key(), value(member.value(), place), needed));
    }
    const bool open = !schema.contains("additionalProperties");
    const OrderedJson others = open ? OrderedJson(true) : schema["additionalProperties"];
    const ValueId other = value(others, where + "/additionalProperties");
    if (!open || !schema.contains("properties")) part.additional = other;
    for (const OrderedJson& name : required) {
      const auto declared = [&](const auto& property) { return property.name == name; };
      if (std::none_of(part.properties.begin(), part.properties.end(), declared))
        part.properties.push_back(property(name, other, true));
    }
    add(id, std::move(part));
  }

  CompileBudget budget_;
  SchemaDocument document_;
  JsonGrammar grammar_;
  std::map<std::string, ValueId> values_;  // by the schema's text
  std::map<std::string, PartId> shared_;
  std::deque<Waiting> waiting_;
};

}  // namespace

JsonGrammar compile_json_schema(const std::string& text) {
  return SchemaCompiler(text).run();
}

JsonGrammar any_json_object() {
  return compile_json_schema(R"({"type": "object"})");
}

}  // namespace fathom
