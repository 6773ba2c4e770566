// The fields of a body, one by one: what is absent or null, what has the wrong type, what is out of range.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "serve/api_options.h"

namespace fathom {

// The body as a JSON object with its known members; others are dropped as they are read. Anything else, what
// is nested too deep and what has too many values is an ApiError.
nlohmann::json parse_body(const std::string& body, const ApiLimits& limits);
// Whether a body's member of that name is looked at by some path.
bool is_known_field(std::string_view name);

// A JSON value as an error shows it: a number, or the type. Errors are logged, so a prompt is named by its
// type and never quoted.
std::string shown(const nlohmann::json& value);
const char* kind_of(const nlohmann::json& value);  // "a string", …

class BodyReader {
 public:
  // `path`: the object's own name before its fields' ("stream_options."), or "" for the body itself.
  explicit BodyReader(const nlohmann::json& object, std::string path = "");

  // Returns the field's value, null where it is absent or null.
  const nlohmann::json* find(const char* field) const;
  std::string name(const char* field) const { return path_ + field; }

  std::optional<bool> boolean(const char* field) const;
  std::optional<std::string> text(const char* field) const;
  std::optional<int64_t> integer(const char* field, int64_t least, int64_t most) const;
  std::optional<double> number(const char* field, double least, double most) const;
  const nlohmann::json* object(const char* field) const;
  const nlohmann::json* list(const char* field) const;

  // A field that clients know and that is not served: an ApiError unless it is absent, null, false, 0, "" or
  // empty.
  void unserved(const char* field) const;

 private:
  const nlohmann::json& object_;
  std::string path_;
};

// A list's or a map's value as a token id; `field` names it in the error.
int32_t token_id(const nlohmann::json& value, const std::string& field);

}  // namespace fathom
