#include "io/json_stream.h"

#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

#include "base/format.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

// nlohmann's parser keeps its own stack on the heap, so nesting cannot overflow ours; the bound keeps it
// small.
class Checker : public nlohmann::json_sax<Json> {
 public:
  Checker(int max_depth, const std::string& where, JsonEvents& events)
      : max_depth_(max_depth), where_(where), events_(events) {}

  bool null() override { return other("null"); }
  bool boolean(bool value) override { return other(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return other(std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    events_.whole_number(value);
    return true;
  }
  bool number_float(number_float_t, const string_t& text) override { return other(text); }
  bool binary(binary_t&) override { return other("binary"); }
  bool string(string_t& text) override {
    events_.string(std::move(text));
    return true;
  }

  bool start_object(size_t) override {
    enter();
    keys_.emplace_back();
    events_.begin_object();
    return true;
  }
  bool key(string_t& name) override {
    if (!keys_.back().insert(name).second) fail("{}: the key '{}' is there twice", where_, printable(name));
    events_.key(std::move(name));
    return true;
  }
  bool end_object() override {
    --depth_;
    keys_.pop_back();
    events_.end_object();
    return true;
  }
  bool start_array(size_t) override {
    enter();
    events_.begin_array();
    return true;
  }
  bool end_array() override {
    --depth_;
    events_.end_array();
    return true;
  }

  bool parse_error(size_t position, const std::string&, const Json::exception& error) override {
    fail("{}: not valid JSON at byte {}: {}", where_, position, printable(json_problem(error.what()), 120));
  }

 private:
  bool other(const std::string& what) {
    events_.other(what);
    return true;
  }
  void enter() {
    if (++depth_ > max_depth_) fail("{}: nested deeper than {}", where_, max_depth_);
  }

  const int max_depth_;
  const std::string& where_;
  JsonEvents& events_;
  int depth_ = 0;
  std::vector<std::unordered_set<std::string>> keys_;  // of the open objects
};

}  // namespace

void parse_json(std::string_view text, int max_depth, const std::string& where, JsonEvents& events) {
  Checker checker(max_depth, where, events);
  Json::sax_parse(text.begin(), text.end(), &checker);
}

std::string json_problem(std::string_view message) {
  const size_t name = message.find("] ");
  if (message.starts_with("[json.exception.") && name != std::string_view::npos)
    message.remove_prefix(name + 2);
  const size_t place = message.find(": ");
  if (message.starts_with("parse error at ") && place != std::string_view::npos)
    message.remove_prefix(place + 2);
  return std::string(message);
}

std::string quote_json(const std::string& text, const std::string& where) {
  try {
    return Json(text).dump();
  } catch (const Json::type_error&) {
    fail("{}: '{}' is not UTF-8", where, printable(text));
  }
}

}  // namespace fathom
