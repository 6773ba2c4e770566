#include "serve/json_validator_test.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <regex>

namespace fathom {
namespace {

class Validator {
 public:
  using OrderedJson = nlohmann::ordered_json;
  explicit Validator(const OrderedJson& root) : root_(root) {}

  bool holds(const OrderedJson& schema, const OrderedJson& value) const {
    if (schema.is_boolean()) return schema.get<bool>();
    if (schema.contains("$ref") && !holds(target(schema["$ref"]), value)) return false;
    return type(schema, value) && values(schema, value) && joined(schema, value) && sizes(schema, value) &&
           members(schema, value) && items(schema, value) && text(schema, value);
  }

  static size_t length(const std::string& text) {
    return static_cast<size_t>(std::count_if(
        text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
  }

 private:
  const OrderedJson& target(const std::string& reference) const {
    return root_.at(OrderedJson::json_pointer(reference.substr(1)));
  }

  static bool is(const OrderedJson& value, const std::string& type) {
    if (type == "null") return value.is_null();
    if (type == "boolean") return value.is_boolean();
    if (type == "string") return value.is_string();
    if (type == "array") return value.is_array();
    if (type == "object") return value.is_object();
    if (type == "number") return value.is_number();
    return value.is_number() && value.get<double>() == std::floor(value.get<double>());
  }
  bool type(const OrderedJson& schema, const OrderedJson& value) const {
    if (!schema.contains("type")) return true;
    if (schema["type"].is_string()) return is(value, schema["type"]);
    return std::any_of(schema["type"].begin(), schema["type"].end(),
                       [&](const OrderedJson& name) { return is(value, name); });
  }
  bool values(const OrderedJson& schema, const OrderedJson& value) const {
    if (schema.contains("const") && !same(schema["const"], value)) return false;
    if (!schema.contains("enum")) return true;
    return std::any_of(schema["enum"].begin(), schema["enum"].end(),
                       [&](const OrderedJson& one) { return same(one, value); });
  }
  // Objects are equal in any order.
  static bool same(const OrderedJson& a, const OrderedJson& b) {
    return nlohmann::json::parse(a.dump()) == nlohmann::json::parse(b.dump());
  }
  bool joined(const OrderedJson& schema, const OrderedJson& value) const {
    const auto count = [&](const char* keyword) {
      return std::count_if(schema[keyword].begin(), schema[keyword].end(),
                           [&](const OrderedJson& one) { return holds(one, value); });
    };
    if (schema.contains("allOf") && count("allOf") != std::ssize(schema["allOf"])) return false;
    if (schema.contains("anyOf") && count("anyOf") == 0) return false;
    return !schema.contains("oneOf") || count("oneOf") == 1;
  }
  bool sizes(const OrderedJson& schema, const OrderedJson& value) const {
    const auto within = [&](double size, const char* low, const char* high) {
      return !(schema.contains(low) && size < schema[low].get<double>()) &&
             !(schema.contains(high) && size > schema[high].get<double>());
    };
    if (value.is_string())
      return within(static_cast<double>(length(value.get_ref<const std::string&>())), "minLength",
                    "maxLength");
    if (value.is_array()) return within(static_cast<double>(value.size()), "minItems", "maxItems");
    if (!value.is_number()) return true;
    const auto number = value.get<double>();
    if (!within(number, "minimum", "maximum")) return false;
    return !(schema.contains("exclusiveMinimum") && number <= schema["exclusiveMinimum"].get<double>()) &&
           !(schema.contains("exclusiveMaximum") && number >= schema["exclusiveMaximum"].get<double>());
  }
  bool members(const OrderedJson& schema, const OrderedJson& value) const {
    if (!value.is_object()) return true;
    if (schema.contains("required")) {
      for (const OrderedJson& name : schema["required"]) {
        if (!value.contains(name.get_ref<const std::string&>())) return false;
      }
    }
    for (const auto& [name, member] : value.items()) {
      if (schema.contains("properties") && schema["properties"].contains(name)) {
        if (!holds(schema["properties"][name], member)) return false;
      } else if (schema.contains("additionalProperties") && !holds(schema["additionalProperties"], member)) {
        return false;
      }
    }
    return true;
  }
  bool items(const OrderedJson& schema, const OrderedJson& value) const {
    if (!value.is_array()) return true;
    const size_t prefix = schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
    for (size_t i = 0; i < value.size(); ++i) {
      if (i < prefix && !holds(schema["prefixItems"][i], value[i])) return false;
      if (i >= prefix && schema.contains("items") && !holds(schema["items"], value[i])) return false;
    }
    return true;
  }
  bool text(const OrderedJson& schema, const OrderedJson& value) const {
    if (!value.is_string()) return true;
    const auto& text = value.get_ref<const std::string&>();
    if (schema.contains("pattern") &&
        !std::regex_search(text, std::regex(schema["pattern"].get<std::string>())))
      return false;
    return !schema.contains("format") || format(schema["format"], text);
  }
  static bool format(const std::string& name, const std::string& text) {
    const auto matches = [&](const char* pattern) { return std::regex_match(text, std::regex(pattern)); };
    if (name == "date") return matches("\\d{4}-\\d\\d-\\d\\d") && is_day(text);
    if (name == "time") return is_time(text);
    if (name == "date-time")
      return text.size() > 11 && text[10] == 'T' && is_day(text) && is_time(text.substr(11));
    if (name == "uuid") return matches("[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}");
    if (name == "email") return matches("[^@ ]+@[^@ ]+\\.[^@ ]+") && text.size() < 255;
    if (name == "hostname") return matches("[A-Za-z0-9.-]+") && text.size() < 254;
    if (name == "ipv6") return matches("([0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}");
    if (name == "duration") return matches("P[0-9YMDTHSW]+") && text.back() != 'T';
    int a = 0, b = 0, c = 0, d = 0, end = 0;
    return std::sscanf(text.c_str(), "%3d.%3d.%3d.%3d%n", &a, &b, &c, &d, &end) == 4 &&
           end == static_cast<int>(text.size()) && a < 256 && b < 256 && c < 256 && d < 256;
  }
  static bool is_day(const std::string& text) {
    const int year = std::stoi(text), month = std::stoi(text.substr(5)), day = std::stoi(text.substr(8, 2));
    const bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    const int days[] = {31, leap ? 29 : 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    return month >= 1 && month <= 12 && day >= 1 && day <= days[month - 1];
  }
  static bool is_time(const std::string& text) {
    const int hour = std::stoi(text), minute = std::stoi(text.substr(3)), second = std::stoi(text.substr(6));
    return std::regex_match(text, std::regex("\\d\\d:\\d\\d:\\d\\d(\\.\\d+)?(Z|[+-]\\d\\d:\\d\\d)")) &&
           hour < 24 && minute < 60 && second < 60;
  }

  const OrderedJson& root_;
};

}  // namespace

JsonValidator::JsonValidator(const std::string& schema)
    : schema_(std::make_shared<const nlohmann::ordered_json>(nlohmann::ordered_json::parse(schema))) {}

bool JsonValidator::operator()(const std::string& text) const {
  return Validator(*schema_).holds(*schema_, nlohmann::ordered_json::parse(text));
}

}  // namespace fathom
