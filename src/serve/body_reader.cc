#include "serve/body_reader.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/format.h"
#include "serve/api_error.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

[[noreturn]] void wrong_type(const std::string& field, const char* wanted, const Json& value) {
  refuse_field(field, fmt::format("{} must be {}, got {}", field, wanted, kind_of(value)));
}

// Whole numbers may be written as 2.0.
std::optional<int64_t> whole(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  const auto number = value.get<double>();
  if (!(std::abs(number) < 9e15) || number != std::floor(number)) return std::nullopt;
  return static_cast<int64_t>(number);
}

}  // namespace

const char* kind_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::array:
      return "a list";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::null:
      return "null";
    default:
      return "a number";
  }
}

std::string shown(const Json& value) {
  return value.is_string() || value.is_structured() ? kind_of(value) : printable(value.dump(), 40);
}

BodyReader::BodyReader(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

const Json* BodyReader::find(const char* field) const {
  if (path_.empty() && !is_known_field(field))
    throw std::logic_error(fmt::format("parse_body drops the field {}", field));
  const auto at = object_.find(field);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

std::optional<bool> BodyReader::boolean(const char* field) const {
  const Json* value = find(field);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) wrong_type(name(field), "true or false", *value);
  return value->get<bool>();
}

std::optional<std::string> BodyReader::text(const char* field) const {
  const Json* value = find(field);
  if (!value) return std::nullopt;
  if (!value->is_string()) wrong_type(name(field), "a string", *value);
  return value->get<std::string>();
}

std::optional<int64_t> BodyReader::integer(const char* field, int64_t least, int64_t most) const {
  const Json* value = find(field);
  if (!value) return std::nullopt;
  if (!value->is_number()) wrong_type(name(field), "a whole number", *value);
  const std::optional<int64_t> number = whole(*value);
  if (!number || *number < least || *number > most)
    refuse_field(name(field), fmt::format("{} must be a whole number from {} to {}, got {}", name(field),
                                          least, most, shown(*value)));
  return number;
}

std::optional<double> BodyReader::number(const char* field, double least, double most) const {
  const Json* value = find(field);
  if (!value) return std::nullopt;
  if (!value->is_number()) wrong_type(name(field), "a number", *value);
  const auto number = value->get<double>();
  if (!(number >= least && number <= most))
    refuse_field(name(field), fmt::format("{} must be from {:g} to {:g}, got {}", name(field), least, most,
                                          shown(*value)));
  return number;
}

const Json* BodyReader::object(const char* field) const {
  const Json* value = find(field);
  if (value && !value->is_object()) wrong_type(name(field), "an object", *value);
  return value;
}

const Json* BodyReader::list(const char* field) const {
  const Json* value = find(field);
  if (value && !value->is_array()) wrong_type(name(field), "a list", *value);
  return value;
}

void BodyReader::unserved(const char* field) const {
  const Json* value = find(field);
  // An empty object or a 0 may switch something on.
  const bool asks_nothing = !value || *value == false ||
                            (value->is_string() && value->get_ref<const std::string&>().empty()) ||
                            (value->is_array() && value->empty());
  if (!asks_nothing)
    throw ApiError(400, fmt::format("{} is not served here: leave it out", name(field)), name(field),
                   "unsupported_parameter");
}

int32_t token_id(const Json& value, const std::string& field) {
  const std::optional<int64_t> id = value.is_number() ? whole(value) : std::nullopt;
  if (!id || *id < 0 || *id > INT32_MAX)
    refuse_field(field, fmt::format("{}: a token id must be a whole number of 0 or more, got {}", field,
                                    shown(value)));
  return static_cast<int32_t>(*id);
}

}  // namespace fathom
