// Reads JSON from untrusted files, as events instead of a tree: nothing is built before it is checked.
// UTF-8 is checked, nesting is bounded, a key that an object holds twice is refused.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fathom {

class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual void begin_object() = 0;
  virtual void end_object() = 0;
  virtual void begin_array() = 0;
  virtual void end_array() = 0;
  virtual void key(std::string name) = 0;
  virtual void string(std::string text) = 0;
  virtual void whole_number(uint64_t value) = 0;
  // null, a boolean, a negative number, a fraction or one past 2^64: `what` is its text.
  virtual void other(const std::string& what) = 0;
};

// Anything that is not one JSON value is a UserError that starts with `where`.
void parse_json(std::string_view text, int max_depth, const std::string& where, JsonEvents& events);

// What a message of the JSON library says, without its own prefixes:
// "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error …" -> "syntax error …".
std::string json_problem(std::string_view message);

// `text` as a JSON string, quotes included. Invalid UTF-8 is a UserError that starts with `where`.
std::string quote_json(const std::string& text, const std::string& where);

}  // namespace fathom
