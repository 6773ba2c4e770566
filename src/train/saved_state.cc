#include "train/saved_state.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json_depth.h"
#include "base/mapped_file.h"

namespace fathom {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kMostBytes = size_t{64} << 20;

bool is_sum(const OrderedJson& json) {
  return json.is_array() && json.size() == 2 && json[0].is_string() && json[1].is_number_unsigned() &&
         json[1].get<uint64_t>() <= UINT32_MAX;
}

}  // namespace

SavedState::SavedState(const CheckpointPlace& place) : where_(printable(place.path + "/state.json")) {
  const std::string text = read_text_file(place.path + "/state.json", kMostBytes);
  check_json_depth(text, where_);
  json_ = std::make_unique<OrderedJson>(OrderedJson::parse(text, nullptr, false));
  if (!json_->is_object()) fail("{}: expected a JSON object", where_);
}

SavedState::~SavedState() = default;

void SavedState::refuse(const char* key, const std::string& expected) const {
  fail("{}: '{}' must be {}, got {}", where_, key, expected, printable(at(key).dump(), 80));
}

const OrderedJson& SavedState::at(const char* key) const {
  if (!json_->contains(key)) fail("{}: '{}' is missing", where_, key);
  return (*json_)[key];
}

bool SavedState::has(const char* key) const {
  return json_->contains(key);
}

int64_t SavedState::count(const char* key, int64_t most) const {
  const OrderedJson& value = at(key);
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(most))
    refuse(key, fmt::format("a whole number from 0 to {}", most));
  return value.get<int64_t>();
}

double SavedState::number(const char* key) const {
  const OrderedJson& value = at(key);
  if (!value.is_number() || !std::isfinite(value.get<double>())) refuse(key, "a finite number");
  return value.get<double>();
}

double SavedState::number_or(const char* key, double none) const {
  return !has(key) || at(key).is_null() ? none : number(key);
}

bool SavedState::is_true(const char* key) const {
  return has(key) && at(key) == true;
}

std::string SavedState::text_or(const char* key, const std::string& none) const {
  if (!has(key)) return none;
  if (!at(key).is_string()) refuse(key, "a string");
  return at(key).get<std::string>();
}

std::vector<float> SavedState::numbers(const char* key) const {
  std::vector<float> all;
  if (!at(key).is_array()) refuse(key, "a list of numbers");
  for (const OrderedJson& value : at(key)) {
    if (!value.is_number() || !std::isfinite(value.get<float>())) refuse(key, "a list of finite numbers");
    all.push_back(value.get<float>());
  }
  return all;
}

std::optional<NamedSums> SavedState::sums(const char* key) const {
  if (!has(key)) return std::nullopt;
  if (!at(key).is_array()) refuse(key, "a list of names and checksums");
  NamedSums all;
  for (const OrderedJson& one : at(key)) {
    if (!is_sum(one)) refuse(key, "a list of names and checksums");
    all.emplace_back(one[0].get<std::string>(), one[1].get<uint32_t>());
  }
  return all;
}

const OrderedJson& SavedState::object(const char* key) const {
  if (!at(key).is_object()) refuse(key, "an object");
  return at(key);
}

}  // namespace fathom
