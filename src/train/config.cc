#include "train/config.h"

#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json_depth.h"
#include "base/rng.h"
#include "model/lora.h"

namespace fathom {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr uint32_t kTextStream = 0x7e87;

constexpr std::array<std::string_view, 7> kMayChange{"steps",          "log_every",        "prepare_data",
                                                     "prepare_tokens", "checkpoint.every", "checkpoint.keep",
                                                     "data_cache"};

void flatten(const OrderedJson& json, const std::string& prefix, OrderedJson& flat) {
  for (const auto& [key, value] : json.items()) {
    if (value.is_object())
      flatten(value, prefix + key + ".", flat);
    else
      flat[prefix + key] = value;
  }
}

OrderedJson flattened(const std::string& text) {
  OrderedJson flat = OrderedJson::object();
  flatten(OrderedJson::parse(text, nullptr, false, true), "", flat);
  return flat;
}

}  // namespace

std::span<const std::string_view> enum_names(OnNan) {
  static constexpr std::array<std::string_view, 2> kNames{"stop", "rollback"};
  return kNames;
}

std::span<const std::string_view> enum_names(MergeRounding) {
  static constexpr std::array<std::string_view, 2> kNames{"none", "q4_1"};
  return kNames;
}

ModelConfig TrainConfig::default_model() {
  ModelConfig model;
  model.architecture = "llama";
  model.norm_eps = 1e-5f;
  return model;
}

bool TrainConfig::learns_text(int64_t step) const {
  return Rng(seed, {kTextStream, static_cast<uint32_t>(step), 0}).uniform() < text_share;
}

// Other programs have a switch. Here there is no other way: the key is taken, and not kept.
constexpr std::string_view kDeterministic = "deterministic";
constexpr std::string_view kAlwaysDeterministic =
    "deterministic can only be true: every run gives the same bits again";

Recipe Recipe::parse(const std::string& json_text, const std::string& where) {
  check_json_depth(json_text, where);
  OrderedJson json = OrderedJson::parse(json_text, nullptr, false, true);
  if (!json.is_object()) fail("{}: expected a JSON object", where);
  OrderedJson method{{"name", "dense"}};
  if (json.contains("method")) {
    method = json["method"].is_string() ? OrderedJson{{"name", json["method"]}} : json["method"];
    json.erase("method");
  }
  if (const auto found = json.find(kDeterministic); found != json.end()) {
    require(*found == true, "{}: {}", where, kAlwaysDeterministic);
    json.erase(found);
  }
  Recipe recipe;
  fields_from_json(fields_of(recipe.train), json.dump(), where);
  recipe.method = MethodPolicy::from_json(method.dump(), where + ": method");
  return recipe;
}

void Recipe::set(const std::string& assignment) {
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos)
    throw UsageError(fmt::format("expected key=value, got '{}'", printable(assignment)));
  const std::string key = assignment.substr(0, equals), value = assignment.substr(equals + 1);
  constexpr std::string_view kMethod = "method.";
  if (key == "method" || key == "method.name") {
    method = MethodPolicy::from_json(OrderedJson{{"name", value}}.dump(), "method");
  } else if (key.rfind(kMethod, 0) == 0) {
    // Through JSON again: the value may name another method, whose part is made then.
    set_field(method->fields(), key.substr(kMethod.size()), value);
    method = MethodPolicy::from_json(method->to_json(), "method");
  } else if (key == kDeterministic) {
    if (value != "true") throw UsageError(std::string(kAlwaysDeterministic));
  } else {
    set_field(fields_of(train), key, value);
  }
}

namespace {

void check_lora(const LoraConfig& lora) {
  require(lora.rank >= 0 && lora.rank <= 4096, "lora.rank must be from 0 to 4096, got {}", lora.rank);
  require(lora.alpha >= 0 && std::isfinite(lora.alpha), "lora.alpha must be a number of at least 0, got {}",
          lora.alpha);
  require(lora.dropout >= 0 && lora.dropout < 1, "lora.dropout must be in [0, 1), got {}", lora.dropout);
  const bool rounds = lora.round != MergeRounding::kNone;
  require(!rounds || lora.dropout == 0,
          "lora.round trains the factors inside the weights, where lora.dropout must be 0, got {}",
          lora.dropout);
  require(lora.rank > 0 ||
              (lora.alpha == 0 && lora.targets.empty() && lora.dropout == 0 && !rounds && lora.start.empty()),
          "lora.rank must be at least 1 where lora has other keys, got 0");
  check_lora_targets(lora.targets, "lora.targets");
}

}  // namespace

void Recipe::check() const {
  const TrainConfig& c = train;
  const auto at_least = [](const char* key, int64_t value, int64_t least) {
    require(value >= least, "{} must be at least {}, got {}", key, least, value);
  };
  at_least("batch", c.batch, 1);
  at_least("context", c.context, 2);
  at_least("accumulate", c.accumulate, 1);
  at_least("steps", c.steps, 0);
  at_least("schedule_steps", c.schedule_steps, 1);
  at_least("log_every", c.log_every, 1);
  at_least("prepare_tokens", c.prepare_tokens, 1);
  at_least("rollbacks", c.rollbacks, 0);
  at_least("checkpoint.every", c.checkpoint.every, 0);
  at_least("checkpoint.keep", c.checkpoint.keep, 0);
  at_least("validation.every", c.validation.every, 0);
  at_least("validation.batches", c.validation.batches, 1);
  at_least("validation.patience", c.validation.patience, 0);
  const int64_t most = int64_t{1} << 30;
  require(c.accumulate < most, "accumulate must be less than 2^30, got {}", c.accumulate);
  require(c.batch < most && c.context < most && c.batch * c.context < most,
          "a micro-batch must be less than 2^30 rows, got {} x {}", c.batch, c.context);
  require(c.clip >= 0, "clip must not be negative, got {}", c.clip);
  require(c.method_rate > 0, "method_rate must be above 0, got {}", c.method_rate);
  require(c.text_share >= 0 && c.text_share <= 1, "text_share must be between 0 and 1, got {}", c.text_share);
  require(c.text_share == 0 || method->options().objective == Objective::kDistill,
          "text_share is of runs that distil: every step of this one learns the text (method.objective)");
  require(c.spike == 0 || c.spike > 1, "spike must be 0 or above 1, got {}", c.spike);
  require(c.validation.share >= 0 && c.validation.share < 1, "validation.share must be in [0, 1), got {}",
          c.validation.share);
  require(c.validation.share == 0 || c.validation.data.empty(),
          "validation.share and validation.data are two ways to say the same: give one");
  require(c.validation.patience == 0 || c.validation.share > 0 || !c.validation.data.empty(),
          "validation.patience needs validation.data or validation.share");
  check_lora(c.lora);
  check_optimizer(c.optimizer);
  const Schedule schedule(c.schedule, c.schedule_steps);
  method->check_training(c.lora.rank > 0 || !method->options().frozen_backbone);
  for (const std::string& entry : c.data) parse_data(entry);
}

std::string Recipe::to_json() const {
  TrainConfig copy = train;
  OrderedJson json = OrderedJson::parse(fields_to_json(fields_of(copy)));
  json["method"] = OrderedJson::parse(method->to_json());
  return json.dump(2) + "\n";
}

std::vector<std::string> differing_keys(const std::string& json_a, const std::string& json_b) {
  const OrderedJson a = flattened(json_a), b = flattened(json_b);
  std::vector<std::string> keys;
  const auto compare = [&](const OrderedJson& one, const OrderedJson& other, bool both) {
    for (const auto& [key, value] : one.items()) {
      if (std::find(kMayChange.begin(), kMayChange.end(), key) != kMayChange.end()) continue;
      const auto found = other.find(key);
      if (found == other.end() || (both && *found != value)) keys.push_back(key);
    }
  };
  compare(a, b, true);
  compare(b, a, false);
  return keys;
}

WeightedPath parse_data(const std::string& entry) {
  const size_t colon = entry.rfind(':');
  if (entry.empty()) fail("data: expected a file, got an empty name");
  if (colon == std::string::npos) return {entry, 0};
  double weight = 0;
  const char *begin = entry.data() + colon + 1, *end = entry.data() + entry.size();
  const auto [stop, error] = std::from_chars(begin, end, weight);
  if (begin == end || error != std::errc() || stop != end) return {entry, 0};  // a name with a colon
  if (!(weight > 0 && std::isfinite(weight)))
    fail("data: a weight must be above 0, got '{}'", printable(entry));
  return {entry.substr(0, colon), weight};
}

namespace {

constexpr int64_t kManyLayers = 1 << 16;

// A model that has them cannot be loaded again.
void check_marks(const ModelConfig& model) {
  const auto inside = [&](const char* key, int32_t id, int32_t least) {
    require(id >= least && id < model.vocab, "model.{} must be a token of the vocabulary of {}, got {}", key,
            model.vocab, id);
  };
  inside("bos", model.bos, -1);
  for (const int32_t id : model.eos) inside("eos", id, 0);
}

// A checkpoint's config.json must give this model back: some architectures have no key for some fields.
void check_fits_its_architecture(ModelConfig model) {
  if (!model.has_local_rope) model.local_rope = {};  // said by nobody, asked by nobody
  ModelConfig back = config_from_hf(config_to_hf(model, "float32"), "model");
  if (!back.has_local_rope) back.local_rope = {};
  const std::vector<Field> asked = fields_of(model), kept = fields_of(back);
  for (size_t i = 0; i < asked.size(); ++i) {
    if (field_text(asked[i]) != field_text(kept[i]))
      fail(
          "model.{} = {}: architecture {} has {} there and no key to say so (skip_middle takes norms as you "
          "like)",
          asked[i].name, field_text(asked[i]), model.architecture, field_text(kept[i]));
  }
}

}  // namespace

ModelConfig complete_model(ModelConfig model, const TrainConfig& config, const Tokenizer* tokenizer) {
  if (model.kv_heads == 0) model.kv_heads = model.heads;
  if (model.head_dim == 0 && model.heads > 0) {
    if (model.width % model.heads != 0)
      fail("model: {} heads do not divide the width {}: give model.head_dim", model.heads, model.width);
    model.head_dim = model.width / model.heads;
  }
  if (model.attention_scale == 0 && model.head_dim > 0)
    model.attention_scale = 1 / std::sqrt(static_cast<float>(model.head_dim));
  if (model.context == 0) model.context = config.context;
  // More layers than any model has are refused below.
  if (model.windows.empty() && model.layers > 0 && model.layers < kManyLayers)
    model.windows.assign(static_cast<size_t>(model.layers), 0);
  if (tokenizer) {
    if (model.vocab == 0) model.vocab = tokenizer->vocab_size();
    if (model.bos < 0) model.bos = tokenizer->bos();
    if (model.eos.empty() && tokenizer->eos() >= 0) model.eos = {tokenizer->eos()};
    if (tokenizer->vocab_size() > model.vocab)
      fail("model: the tokenizer has {} tokens, more than the vocabulary of {}", tokenizer->vocab_size(),
           model.vocab);
  }
  check_config(model, "model");
  check_marks(model);
  check_fits_its_architecture(model);
  return model;
}

}  // namespace fathom
