// What a checkpoint holds: a model that other verbs load, the method's tensors, and all that resume needs.
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/log.h"
#include "io/atomic_file.h"
#include "io/safetensors.h"
#include "model/save.h"
#include "model/weights.h"
#include "skip/adapter.h"
#include "skip/lora_files.h"
#include "train/saved_state.h"
#include "train/trainer.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kFormatVersion = 1;
constexpr const char* kMethodFolder = "skip";  // where other verbs look for a model's own method
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr int64_t kMostCounted = int64_t{1} << 53;  // steps, samples, tokens: a double counts them exactly
constexpr std::string_view kAdapterPrefix = "base_model.model.";

// Does model.safetensors hold the weights bit for bit as they are in memory? Not where they are reordered or
// shifted on the way to Hugging Face's form.
bool saved_as_held(const ModelConfig& config) {
  return config.rope_style == RopeStyle::kHalves && config.norm_weight_offset == 0;
}

// The recipe that a checkpoint was made by, as this version writes it: the method's keys have their names of
// now, and keys that are newer than the checkpoint their defaults.
std::string saved_recipe(const SavedState& state, MethodPolicy& method) {
  OrderedJson recipe = state.object("recipe");
  if (recipe.contains("method") && recipe["method"].is_object())
    recipe["method"] =
        OrderedJson::parse(with_new_names(method.fields(), recipe["method"].dump(), state.where()));
  return Recipe::parse(recipe.dump(), state.where()).to_json();
}

// Data may lie in another folder than it did. Its content is compared apart (check_inputs).
std::string with_bare_names(const std::string& recipe) {
  OrderedJson json = OrderedJson::parse(recipe);
  const auto strip = [](OrderedJson& holder) {
    if (!holder.is_object() || !holder.contains("data") || !holder["data"].is_array()) return;
    for (OrderedJson& file : holder["data"]) {
      if (file.is_string()) file = fs::path(file.get<std::string>()).filename().string();
    }
  };
  strip(json);
  if (json.contains("validation")) strip(json["validation"]);
  return json.dump();
}

// Likewise; of several files of one name, each has its number.
NamedSums with_bare_names(const NamedSums& sums) {
  NamedSums bare;
  std::map<std::string, int> seen;
  for (const auto& [path, sum] : sums) {
    const std::string name = fs::path(path).filename().string();
    const int number = ++seen[name];
    bare.emplace_back(number == 1 ? name : fmt::format("{} ({})", name, number), sum);
  }
  return bare;
}

void check_recipe(const SavedState& state, const CheckpointPlace& place, const Recipe& recipe) {
  const std::vector<std::string> keys =
      differing_keys(with_bare_names(saved_recipe(state, *recipe.method)), with_bare_names(recipe.to_json()));
  if (keys.empty()) return;
  std::string list;
  for (const std::string& key : keys) list += (list.empty() ? "" : ", ") + key;
  fail("{} was made by another recipe: these keys differ: {}", place.path, printable(list, 400));
}

OrderedJson sums_json(const NamedSums& sums) {
  OrderedJson list = OrderedJson::array();
  for (const auto& [name, sum] : sums) list.push_back({name, sum});
  return list;
}

// The kernels that products run on: they differ in how bf16 sums are rounded.
std::string kernels_of(const Context& ctx) {
  return ctx.device() == Device::kCpu ? name_of(ctx.isa()) : name_of(ctx.device());
}

// These compute bf16 products in f32, in one order.
bool rounds_in_f32(const std::string& kernels) {
  return kernels == "scalar" || kernels == "avx2" || kernels == "dotprod";
}

void warn_of_other_kernels(const SavedState& state, const Context& ctx, Precision precision) {
  const std::string then = state.text_or("kernels", kernels_of(ctx)), now = kernels_of(ctx);
  const bool alike = then == now || (rounds_in_f32(then) && rounds_in_f32(now));
  if (alike || precision != Precision::kBf16) return;
  log_warn(fmt::format(
      "the run was made with the kernels of {}, and goes on with those of {}: bf16 sums are "
      "rounded otherwise, so the weights will not be bit for bit those of a run that never stopped",
      printable(then), now));
}

// Files are written from the host.
std::vector<NamedTensor> on_host(Context& ctx, std::vector<NamedTensor> tensors) {
  for (NamedTensor& each : tensors) each.tensor = each.tensor.to(ctx, Device::kCpu);
  return tensors;
}

}  // namespace

// The model with the f32 values that training moves.
Model Trainer::master_model() const {
  Model out = model_;
  const std::vector<NamedTensor> values = parameters_->named_values();
  for (const WeightSpec& spec : weight_specs(out.config, out.weights)) {
    for (const NamedTensor& value : values) {
      if (value.name == spec.hf) *spec.tensor = value.tensor;
    }
  }
  for (const ParameterSpec& spec : lora_parameters(out)) {
    for (const NamedTensor& value : values) {
      if (value.name == spec.name) *spec.tensor = value.tensor;
    }
  }
  if (out.config.tied) out.weights.output = out.weights.embedding;
  return out;
}

void Trainer::save(const std::string& folder) {
  const bool backbone = !recipe_.frozen();
  const Model model = master_model();
  if (backbone) save_hf(ctx_, model, folder, DType::kF32);
  fs::create_directories(folder);
  if (backbone && !saved_as_held(model_.config)) {
    std::vector<NamedTensor> values = parameters_->named_values();
    values.resize(values.size() - method_parameters_.size());
    write_safetensors(folder + "/trained.safetensors", on_host(ctx_, std::move(values)));
  }
  write_safetensors(folder + "/" + kOptimizerFile, on_host(ctx_, optimizer_->state()));
  if (!recipe_.method->is_dense() || model.lora.any())
    save_adapter(
        ctx_, folder + "/" + kMethodFolder, *recipe_.method, model,
        {.base_model = recipe_.train.base, .projections = base_projections_, .trained = trained_rule_});

  OrderedJson state{{"format_version", kFormatVersion},
                    {"step", progress_.step},
                    {"sample", progress_.sample},
                    {"tokens", progress_.tokens},
                    {"optimizer_steps", optimizer_->steps()},
                    {"mean_loss", progress_.mean_loss},
                    {"best", progress_.best},
                    {"worse", progress_.worse},
                    {"best_step", progress_.best_step},
                    {"ended", progress_.ended},
                    {"best_step_ce", progress_.best_step_ce},
                    {"last_loss", progress_.last.loss},  // null: not measured
                    {"last_ce", progress_.last.ce},
                    {"last_skip_ratio", progress_.last.skip_ratio},
                    {"last_net_flops", progress_.last.net_flops},
                    {"last_validation_ce", progress_.last.validation_ce},
                    {"kernels", kernels_of(ctx_)},
                    {"data_samples", train_.samples()},
                    {"data_tokens", train_.tokens()},
                    {"data_sums", sums_json(data_sums(train_))},
                    {"validation_sums", sums_json(validation_ ? data_sums(*validation_) : NamedSums{})},
                    {"base_sums", sums_json(base_sums_)},
                    {"controllers", OrderedJson::array()}};
  for (const float* value : recipe_.method->controllers()) state["controllers"].push_back(*value);
  state["recipe"] = OrderedJson::parse(recipe_.to_json());
  write_file_atomically(folder + "/state.json", state.dump(1) + "\n");
}

// again: also where the step has one.
CheckpointPlace Trainer::checkpoint(bool again) {
  const double ce = progress_.last.validation_ce;
  if (validated_ == progress_.step && (progress_.best_step < 0 || ce < progress_.best_step_ce)) {
    progress_.best_step = progress_.step;
    progress_.best_step_ce = ce;
  }
  return write_checkpoint(dir_, progress_.step, {recipe_.train.checkpoint.keep, progress_.best_step, again},
                          [&](const std::string& folder) { save(folder); });
}

bool Trainer::resume() {
  if (!looked_) found_ = newest_checkpoint(dir_);
  looked_ = true;
  if (!found_) return false;
  load(*found_);
  return true;
}

// What the newest checkpoint's run was prepared with (a fixed list), so that it is not measured again. What
// is wrong with the rest of the checkpoint load() says.
void Trainer::take_measured() {
  const SavedState state(*found_);
  const OrderedJson recipe = state.object("recipe"), now = OrderedJson::parse(recipe_.to_json()).at("method");
  const auto then = recipe.find("method");
  if (then == recipe.end() || !then->is_object() || !then->contains("name")) return;
  if ((*then)["name"] != recipe_.method->name()) return;
  for (const std::string& key : recipe_.method->measured()) {
    if (now.contains(key) && now[key].empty() && then->contains(key) && !(*then)[key].empty())
      recipe_.set(fmt::format("method.{}={}", key, (*then)[key].dump()));
  }
}

// The LoRA of a checkpoint, by the names that its parameters have.
std::vector<NamedTensor> Trainer::load_factors(const std::string& checkpoint) {
  if (recipe_.train.lora.rank == 0) return {};
  Model stored;
  stored.config = model_.config;
  stored.lora = read_lora(ctx_, checkpoint + "/" + kMethodFolder + "/" + kLoraFolder, model_.config);
  std::vector<NamedTensor> factors;
  for (const ParameterSpec& spec : lora_parameters(stored)) factors.push_back({spec.name, *spec.tensor});
  return factors;
}

// Data edited to the same length, or a base with other weights, would go unnoticed otherwise.
void Trainer::check_inputs(const SavedState& state, const CheckpointPlace& place) const {
  if (state.count("data_samples", kMostCounted) != train_.samples() ||
      state.count("data_tokens", kMostCounted) != train_.tokens())
    fail("{} was made from other data: {} tokens, and now there are {}", place.path,
         state.count("data_tokens", kMostCounted), train_.tokens());
  const auto compare = [&](const char* key, const NamedSums& now, const char* what) {
    const std::optional<NamedSums> then = state.sums(key);
    if (!then)
      return log_warn(fmt::format("{} does not say what is in its {}: not compared", place.path, what));
    const std::string names = differing_names(with_bare_names(*then), with_bare_names(now));
    if (!names.empty())
      fail("{} was made from {} of other content: these are not as they were: {}", place.path, what, names);
  };
  compare("data_sums", data_sums(train_), "data");
  compare("validation_sums", validation_ ? data_sums(*validation_) : NamedSums{}, "validation data");
  compare("base_sums", base_sums_, "base");
}

void Trainer::load_tensors(const CheckpointPlace& place, int64_t optimizer_steps) {
  std::vector<NamedTensor> tensors;
  const auto take = [&](const std::string& name) {
    if (!place.has(name)) return;
    const auto file = SafetensorsFile::open(place.path + "/" + name);
    tensors.insert(tensors.end(), file->tensors().begin(), file->tensors().end());
  };
  const bool held = saved_as_held(model_.config) && !recipe_.frozen();
  take(held ? "model.safetensors" : "trained.safetensors");
  const size_t first_own = tensors.size();
  take(std::string(kMethodFolder) + "/adapter_model.safetensors");
  for (size_t i = first_own; i < tensors.size(); ++i) {
    if (tensors[i].name.starts_with(kAdapterPrefix)) tensors[i].name.erase(0, kAdapterPrefix.size());
  }
  const std::vector<NamedTensor> factors = load_factors(place.path);
  tensors.insert(tensors.end(), factors.begin(), factors.end());
  parameters_->load(ctx_, tensors, place.path);
  if (merged_) merged_->merge(ctx_);
  if (!place.has(kOptimizerFile)) fail("{}: {} is missing", printable(place.path), kOptimizerFile);
  optimizer_->load(ctx_, SafetensorsFile::open(place.path + "/" + kOptimizerFile)->tensors(), optimizer_steps,
                   place.path);
}

void Trainer::load(const CheckpointPlace& place) {
  const SavedState state(place);
  if (state.count("format_version", INT64_MAX) != kFormatVersion)
    fail("{}: format_version must be {}, got {}", state.where(), kFormatVersion,
         state.count("format_version", INT64_MAX));
  check_recipe(state, place, recipe_);
  check_inputs(state, place);
  warn_of_other_kernels(state, ctx_, recipe_.train.precision);
  Progress saved;
  saved.step = state.count("step", kMostCounted);
  if (saved.step != place.step)
    fail("{}: 'step' must be that of its folder, {}, got {}", state.where(), place.step, saved.step);
  saved.sample = state.count("sample", kMostCounted);
  saved.tokens = state.count("tokens", kMostCounted);
  saved.mean_loss = state.number("mean_loss");
  saved.best = state.number("best");
  saved.worse = state.count("worse", saved.step);
  saved.best_step = static_cast<int64_t>(
      std::clamp(state.number_or("best_step", -1), -1.0, static_cast<double>(saved.step)));
  saved.best_step_ce = state.number_or("best_step_ce", -1);
  saved.ended = state.is_true("ended");
  saved.last = {state.number_or("last_loss", NAN), state.number_or("last_ce", NAN),
                state.number_or("last_skip_ratio", 0), state.number_or("last_net_flops", 1),
                state.number_or("last_validation_ce", -1)};
  const std::vector<float*> controllers = recipe_.method->controllers();
  const std::vector<float> values = state.numbers("controllers");
  if (values.size() != controllers.size())
    fail("{}: expected {} controllers, got {}", state.where(), controllers.size(), values.size());
  load_tensors(place, state.count("optimizer_steps", saved.step));
  for (size_t i = 0; i < controllers.size(); ++i) *controllers[i] = values[i];
  progress_ = saved;
}

}  // namespace fathom
