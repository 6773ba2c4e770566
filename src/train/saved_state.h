// What a checkpoint's state.json says, read with distrust: whatever is not as a run writes it is a UserError
// that names the file and the key.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "train/checkpoint.h"
#include "train/input_sums.h"

namespace fathom {

class SavedState {
 public:
  explicit SavedState(const CheckpointPlace& place);
  ~SavedState();

  const std::string& where() const { return where_; }
  bool has(const char* key) const;
  int64_t count(const char* key, int64_t most) const;    // a whole number from 0
  double number(const char* key) const;                  // finite
  double number_or(const char* key, double none) const;  // `none` where it is null or missing
  bool is_true(const char* key) const;                   // false where it is anything else, or missing
  std::string text_or(const char* key, const std::string& none) const;
  std::vector<float> numbers(const char* key) const;     // all finite
  std::optional<NamedSums> sums(const char* key) const;  // nothing where it is missing
  const nlohmann::ordered_json& object(const char* key) const;

 private:
  const nlohmann::ordered_json& at(const char* key) const;
  [[noreturn]] void refuse(const char* key, const std::string& expected) const;

  std::string where_;
  std::unique_ptr<nlohmann::ordered_json> json_;
};

}  // namespace fathom
