// What a checkpoint holds: a model that other verbs load, the method's tensors, and all that resume needs.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/mapped_file.h"
#include "io/atomic_file.h"
#include "io/safetensors.h"
#include "model/save.h"
#include "model/weights.h"
#include "skip/adapter.h"
#include "train/trainer.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int64_t kFormatVersion = 1;
constexpr const char* kMethodFolder = "skip";  // where other verbs look for a model's own method
constexpr std::string_view kAdapterPrefix = "base_model.model.";

// Does model.safetensors hold the weights bit for bit as they are in memory? Not where they are reordered or
// shifted on the way to Hugging Face's form.
bool saved_as_held(const ModelConfig& config) {
  return config.rope_style == RopeStyle::kHalves && config.norm_weight_offset == 0;
}

const Json& at(const Json& json, const char* key, const std::string& where) {
  if (!json.contains(key)) fail("{}: '{}' is missing", where, key);
  return json[key];
}

// The recipe that a checkpoint was made by, with the names that the method's keys have now.
std::string saved_recipe(const Json& state, MethodPolicy& method, const std::string& where) {
  Json recipe = at(state, "recipe", where);
  if (recipe.contains("method") && recipe["method"].is_object())
    recipe["method"] = Json::parse(with_new_names(method.fields(), recipe["method"].dump(), where));
  return recipe.dump();
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
  if (out.config.tied) out.weights.output = out.weights.embedding;
  return out;
}

void Trainer::save(const std::string& folder) {
  const bool backbone = !recipe_.method->options().frozen_backbone;
  const Model model = master_model();
  if (backbone) save_hf(ctx_, model, folder, DType::kF32);
  fs::create_directories(folder);
  if (backbone && !saved_as_held(model_.config)) {
    std::vector<NamedTensor> values = parameters_->named_values();
    values.resize(values.size() - method_parameters_.size());
    write_safetensors(folder + "/trained.safetensors", on_host(ctx_, std::move(values)));
  }
  write_safetensors(folder + "/optimizer.safetensors", on_host(ctx_, optimizer_->state()));
  if (!recipe_.method->is_dense())
    save_adapter(ctx_, folder + "/" + kMethodFolder, *recipe_.method, model,
                 {.base_model = recipe_.train.base});

  Json state{{"format_version", kFormatVersion},
             {"step", progress_.step},
             {"sample", progress_.sample},
             {"tokens", progress_.tokens},
             {"optimizer_steps", optimizer_->steps()},
             {"mean_loss", progress_.mean_loss},
             {"best", progress_.best},
             {"worse", progress_.worse},
             {"data_samples", train_.samples()},
             {"data_tokens", train_.tokens()},
             {"controllers", Json::array()}};
  for (const float* value : recipe_.method->controllers()) state["controllers"].push_back(*value);
  state["recipe"] = Json::parse(recipe_.to_json());
  write_file_atomically(folder + "/state.json", state.dump(1) + "\n");
}

CheckpointPlace Trainer::checkpoint() {
  return write_checkpoint(dir_, progress_.step, recipe_.train.checkpoint.keep,
                          [&](const std::string& folder) { save(folder); });
}

bool Trainer::resume() {
  const auto place = newest_checkpoint(dir_);
  if (!place) return false;
  load(*place);
  return true;
}

// What the newest checkpoint's run was prepared with (a fixed list), so that it is not measured again. What
// is wrong with the rest of the checkpoint load() says.
void Trainer::take_measured() {
  const auto place = newest_checkpoint(dir_);
  if (!place) return;
  const Json state = Json::parse(read_text_file(place->path + "/state.json"), nullptr, false);
  if (!state.is_object()) return;
  const Json then = state.value(Json::json_pointer("/recipe/method"), Json::object()),
             now = Json::parse(recipe_.to_json()).at("method");
  if (!then.is_object() || then.value("name", "") != recipe_.method->name()) return;
  for (const std::string& key : recipe_.method->measured()) {
    if (now.contains(key) && now[key].empty() && then.contains(key) && !then[key].empty())
      recipe_.set(fmt::format("method.{}={}", key, then[key].dump()));
  }
}

void Trainer::load(const CheckpointPlace& place) {
  const std::string where = place.path + "/state.json";
  const Json state = Json::parse(read_text_file(where), nullptr, false);
  if (!state.is_object()) fail("{}: expected a JSON object", where);
  if (at(state, "format_version", where) != kFormatVersion)
    fail("{}: format_version must be {}, got {}", where, kFormatVersion, state["format_version"].dump());
  const std::vector<std::string> keys =
      differing_keys(saved_recipe(state, *recipe_.method, where), recipe_.to_json());
  if (!keys.empty()) {
    std::string list;
    for (const std::string& key : keys) list += (list.empty() ? "" : ", ") + key;
    fail("{} was made by another recipe: these keys differ: {}", place.path, printable(list, 400));
  }
  if (at(state, "data_samples", where) != train_.samples() ||
      at(state, "data_tokens", where) != train_.tokens())
    fail("{} was made from other data: {} tokens, and now there are {}", place.path,
         state["data_tokens"].dump(), train_.tokens());

  std::vector<NamedTensor> tensors;
  const auto take = [&](const std::string& name) {
    const std::string path = place.path + "/" + name;
    if (!fs::exists(path)) return;
    const auto file = SafetensorsFile::open(path);
    tensors.insert(tensors.end(), file->tensors().begin(), file->tensors().end());
  };
  if (saved_as_held(model_.config) && !recipe_.method->options().frozen_backbone)
    tensors = read_safetensors_dir(place.path);
  else
    take("trained.safetensors");
  const size_t first_own = tensors.size();
  take(std::string(kMethodFolder) + "/adapter_model.safetensors");
  for (size_t i = first_own; i < tensors.size(); ++i) tensors[i].name.erase(0, kAdapterPrefix.size());
  parameters_->load(ctx_, tensors, place.path);
  optimizer_->load(ctx_, SafetensorsFile::open(place.path + "/optimizer.safetensors")->tensors(),
                   at(state, "optimizer_steps", where).get<int64_t>(), place.path);
  const std::vector<float*> controllers = recipe_.method->controllers();
  const Json& saved = at(state, "controllers", where);
  if (saved.size() != controllers.size())
    fail("{}: expected {} controllers, got {}", where, controllers.size(), saved.size());
  for (size_t i = 0; i < controllers.size(); ++i) *controllers[i] = saved[i].get<float>();
  progress_ = {at(state, "step", where),      at(state, "sample", where), at(state, "tokens", where),
               at(state, "mean_loss", where), at(state, "best", where),   at(state, "worse", where)};
}

}  // namespace fathom
