#include "model/generation_config.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json_depth.h"
#include "base/log.h"
#include "base/mapped_file.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostGenerationBytes = size_t{1} << 20;

// One key at a time; null stands for nothing said.
class GenerationKeys {
 public:
  explicit GenerationKeys(const std::string& path) : path_(path) {
    const std::string text = read_text_file(path, kMostGenerationBytes);
    check_json_depth(text, printable(path));
    json_ = Json::parse(text, nullptr, false, true);
    if (!json_.is_object()) fail("{}: expected a JSON object", printable(path));
  }

  const Json* find(const char* key) const {
    const auto it = json_.find(key);
    return it == json_.end() || it->is_null() ? nullptr : &*it;
  }
  void number(const char* key, float& target) const {
    const Json* value = find(key);
    if (!value) return;
    if (!value->is_number() || !std::isfinite(value->get<float>())) refuse(key, "a finite number", *value);
    target = value->get<float>();
  }
  void whole_number(const char* key, int32_t& target) const {
    const Json* value = find(key);
    if (value) target = integer(key, *value);
  }
  bool boolean(const char* key, bool none) const {
    const Json* value = find(key);
    if (!value) return none;
    if (!value->is_boolean()) refuse(key, "true or false", *value);
    return value->get<bool>();
  }
  std::vector<int32_t> ids(const char* key, const Json& value) const {
    std::vector<int32_t> all;
    for (const Json& id : value.is_array() ? value : Json::array({value})) {
      all.push_back(integer(key, id));
      if (all.back() < 0) refuse(key, "a token's id, or a list of them", value);
    }
    return all;
  }

 private:
  int32_t integer(const char* key, const Json& value) const {
    // transformers writes some whole numbers as fractions.
    const double number = value.is_number() ? value.get<double>() : NAN;
    if (!(std::abs(number) <= INT32_MAX) || std::floor(number) != number)
      refuse(key, "a whole number", value);
    return static_cast<int32_t>(number);
  }
  [[noreturn]] void refuse(const char* key, const char* expected, const Json& value) const {
    fail("{}: '{}' must be {}, got {}", printable(path_), key, expected, printable(value.dump(), 80));
  }

  std::string path_;
  Json json_;
};

// Keys that change what is written, with the value that changes nothing. We do nothing with them.
void warn_of_unused(const GenerationKeys& keys, const std::string& path) {
  const std::pair<const char*, Json> unused[] = {{"num_beams", 1},
                                                 {"num_beam_groups", 1},
                                                 {"penalty_alpha", 0},
                                                 {"typical_p", 1},
                                                 {"epsilon_cutoff", 0},
                                                 {"eta_cutoff", 0},
                                                 {"no_repeat_ngram_size", 0},
                                                 {"encoder_repetition_penalty", 1},
                                                 {"suppress_tokens", Json::array()},
                                                 {"begin_suppress_tokens", Json::array()},
                                                 {"bad_words_ids", Json::array()},
                                                 {"sequence_bias", Json::object()},
                                                 {"forced_bos_token_id", nullptr},
                                                 {"forced_eos_token_id", nullptr},
                                                 {"forced_decoder_ids", nullptr},
                                                 {"guidance_scale", 1}};
  std::string names;
  for (const auto& [key, off] : unused) {
    const Json* value = keys.find(key);
    if (value && *value != off) names += (names.empty() ? "" : ", ") + std::string(key);
  }
  if (!names.empty()) log_warn(fmt::format("{}: not used here: {}", path, names));
}

}  // namespace

void read_generation_config(const std::string& path, Model& model) {
  if (!std::filesystem::exists(path)) return;
  const GenerationKeys keys(path);
  keys.number("temperature", model.generation.temperature);
  keys.number("top_p", model.generation.top_p);
  keys.whole_number("top_k", model.generation.top_k);
  keys.number("min_p", model.generation.min_p);
  keys.number("repetition_penalty", model.generation.repeat_penalty);
  if (!keys.boolean("do_sample", true)) model.generation = {};
  if (const Json* eos = keys.find("eos_token_id")) model.config.eos = keys.ids("eos_token_id", *eos);
  warn_of_unused(keys, path);
}

}  // namespace fathom
