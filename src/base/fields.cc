#include "base/fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json_depth.h"
#include "base/log.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

std::string listed(std::span<const std::string_view> names) {
  std::string all;
  for (std::string_view name : names) all += (all.empty() ? "" : ", ") + std::string(name);
  return all;
}

[[noreturn]] void wrong_value(const Field& field, std::string_view expected, const std::string& got) {
  fail("'{}' must be {}, got {}", field.name, expected, printable(got));
}

// Sets one field from a JSON value of the right type.
struct Setter {
  const Field& field;
  const Json& json;

  void operator()(bool* value) const {
    if (!json.is_boolean()) wrong_value(field, "true or false", json.dump());
    *value = json.get<bool>();
  }
  void operator()(int32_t* value) const { *value = integer<int32_t>(); }
  void operator()(int64_t* value) const { *value = integer<int64_t>(); }
  void operator()(uint64_t* value) const { *value = integer<uint64_t>(); }
  void operator()(float* value) const {
    if (!json.is_number()) wrong_value(field, "a number", json.dump());
    *value = json.get<float>();
  }
  void operator()(std::string* value) const {
    if (!json.is_string()) wrong_value(field, "a string", json.dump());
    *value = json.get<std::string>();
  }
  void operator()(std::vector<int32_t>* value) const {
    if (!json.is_array()) wrong_value(field, "a list of whole numbers", json.dump());
    value->clear();
    for (const Json& item : json) value->push_back(Setter{field, item}.integer<int32_t>());
  }
  void operator()(std::vector<float>* value) const {
    if (!json.is_array()) wrong_value(field, "a list of numbers", json.dump());
    value->clear();
    for (const Json& item : json) {
      if (!item.is_number()) wrong_value(field, "a list of numbers", json.dump());
      value->push_back(item.get<float>());
    }
  }
  void operator()(std::vector<std::string>* value) const {
    if (!json.is_array()) wrong_value(field, "a list of strings", json.dump());
    value->clear();
    for (const Json& item : json) {
      if (!item.is_string()) wrong_value(field, "a list of strings", json.dump());
      value->push_back(item.get<std::string>());
    }
  }
  void operator()(const EnumField& choice) const {
    const std::string got = json.is_string() ? json.get<std::string>() : json.dump();
    for (size_t i = 0; i < choice.names.size(); ++i) {
      if (choice.names[i] != got) continue;
      *choice.value = static_cast<uint8_t>(i);
      return;
    }
    wrong_value(field, "one of " + listed(choice.names), got);
  }

  template <class T>
  T integer() const {
    const std::string text = json.dump();
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (!json.is_number_integer() || error != std::errc() || end != text.data() + text.size()) {
      wrong_value(field, "a whole number that fits", text);
    }
    return value;
  }
};

// The shortest decimal that reads back as this float: 0.8, not 0.800000011920929.
Json number_json(float value) {
  return std::isfinite(value) ? Json(std::stod(fmt::format("{}", value))) : Json(nullptr);
}

Json field_json(const Field& field) {
  return std::visit(
      [](const auto& value) -> Json {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, EnumField>) {
          return std::string(value.names[*value.value]);
        } else if constexpr (std::is_same_v<T, float*>) {
          return number_json(*value);
        } else if constexpr (std::is_same_v<T, std::vector<float>*>) {
          Json list = Json::array();
          for (float one : *value) list.push_back(number_json(one));
          return list;
        } else {
          return *value;
        }
      },
      field.value);
}

// where: "FILE: ", or nothing
void warn_of_old_name(const Field& field, const std::string& where) {
  log_warn(fmt::format("{}'{}' is now called '{}'", where, field.old_name, field.name));
}

const Field& find(std::span<const Field> fields, std::string_view name) {
  std::vector<std::string> names;
  for (const Field& field : fields) {
    if (field.name == name) return field;
    if (!field.old_name.empty() && field.old_name == name) {
      warn_of_old_name(field, "");
      return field;
    }
    names.push_back(field.name);
    for (size_t dot = field.name.find('.'); dot != std::string::npos; dot = field.name.find('.', dot + 1))
      names.push_back(field.name.substr(0, dot));
  }
  if (std::find(names.begin(), names.end(), name) != names.end())
    fail("'{}' must be an object", printable(name));
  const std::string near = nearest_name(name, names.data(), names.size());
  fail("there is no key '{}'{}", printable(name),
       near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near));
}

Json::json_pointer pointer_to(std::string_view name) {
  Json::json_pointer pointer;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t dot = std::min(name.find('.', begin), name.size());
    pointer.push_back(std::string(name.substr(begin, dot - begin)));
    begin = dot + 1;
  }
  return pointer;
}

void rename_old(std::span<const Field> fields, Json& json, const std::string& where) {
  for (const Field& field : fields) {
    if (field.old_name.empty()) continue;
    const Json::json_pointer old = pointer_to(field.old_name), now = pointer_to(field.name);
    if (!json.contains(old)) continue;
    if (json.contains(now))
      fail("{}: '{}' is the old name of '{}': expected one of them, got both", where, field.old_name,
           field.name);
    warn_of_old_name(field, where + ": ");
    Json value = json[old];  // what is put in moves the others
    json[now] = std::move(value);
    json[old.parent_pointer()].erase(old.back());
  }
}

// An object with new names.
Json parse_object(std::span<const Field> fields, const std::string& json_text, const std::string& where) {
  check_json_depth(json_text, where);
  Json json = Json::parse(json_text, nullptr, false, true);
  if (!json.is_object()) fail("{}: expected a JSON object", where);
  rename_old(fields, json, where);
  return json;
}

void read_object(std::span<const Field> fields, const Json& object, const std::string& prefix) {
  for (const auto& [key, value] : object.items()) {
    const std::string name = prefix + key;
    const auto below = [&](const Field& field) { return field.name.starts_with(name + "."); };
    // An object is a group of keys; one that is no group is looked for as a key, and refused as one.
    if (value.is_object() && std::any_of(fields.begin(), fields.end(), below)) {
      read_object(fields, value, name + ".");
    } else {
      const Field& field = find(fields, name);
      std::visit(Setter{field, value}, field.value);
    }
  }
}

}  // namespace

void set_field(std::span<const Field> fields, std::string_view name, std::string_view text) {
  try {
    const Field& field = find(fields, name);
    const bool is_text =
        std::holds_alternative<std::string*>(field.value) || std::holds_alternative<EnumField>(field.value);
    const Json value = is_text ? Json(std::string(text)) : Json::parse(text, nullptr, false);
    if (value.is_discarded()) wrong_value(field, "a JSON value", std::string(text));
    std::visit(Setter{field, value}, field.value);
  } catch (const UserError& error) {
    throw UsageError(error.what());
  }
}

std::string field_text(const Field& field) {
  const Json value = field_json(field);
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void fields_from_json(std::span<const Field> fields, const std::string& json_text, const std::string& where) {
  const Json json = parse_object(fields, json_text, where);
  try {
    read_object(fields, json, "");
  } catch (const UserError& error) {
    fail("{}: {}", where, error.what());
  }
}

std::string with_new_names(std::span<const Field> fields, const std::string& json_text,
                           const std::string& where) {
  return parse_object(fields, json_text, where).dump();
}

std::string fields_to_json(std::span<const Field> fields) {
  Json json = Json::object();
  for (const Field& field : fields) {
    Json* target = &json;
    size_t begin = 0;
    for (size_t dot = field.name.find('.'); dot != std::string::npos; dot = field.name.find('.', begin)) {
      target = &(*target)[field.name.substr(begin, dot - begin)];
      begin = dot + 1;
    }
    (*target)[field.name.substr(begin)] = field_json(field);
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace fathom
