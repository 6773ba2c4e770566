#include "skip/lora_files.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/format.h"
#include "base/json_depth.h"
#include "base/mapped_file.h"
#include "io/atomic_file.h"
#include "io/safetensors.h"
#include "model/load.h"
#include "model/weights.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char *kLoraConfig = "adapter_config.json", *kLoraTensors = "adapter_model.safetensors";
constexpr const char* kLoraPrefix = "base_model.model.";
constexpr size_t kMostLoraConfigBytes = size_t{16} << 20;
constexpr int64_t kMostRank = 4096;

// What PEFT can do to a LoRA besides, and is not computed here: the value that leaves it off.
struct Refused {
  const char* key;
  const char* off;  // a JSON value; null and keys that are not there are off too
};
constexpr Refused kRefused[] = {
    {"use_rslora", "false"},     {"use_dora", "false"},       {"bias", "\"none\""},
    {"modules_to_save", "[]"},   {"rank_pattern", "{}"},      {"alpha_pattern", "{}"},
    {"fan_in_fan_out", "false"}, {"lora_bias", "false"},      {"layer_replication", "[]"},
    {"use_qalora", "false"},     {"target_parameters", "[]"}, {"trainable_token_indices", "[]"},
    {"use_bdlora", "false"},     {"arrow_config", "{}"},      {"alora_invocation_tokens", "[]"},
    {"kasa_config", "{}"},       {"monteclora_config", "{}"},
};

std::string name_of_a(const LoraSpec& spec) {
  return kLoraPrefix + spec.name + ".lora_A.weight";
}
std::string name_of_b(const LoraSpec& spec) {
  return kLoraPrefix + spec.name + ".lora_B.weight";
}

// f32 on the host, whatever it is held in and where.
Tensor host_values(Context& ctx, const Tensor& tensor, const std::string& name) {
  const Tensor values = convert_tensor(ctx, tensor.to(ctx, Device::kCpu), DType::kF32);
  if (!all_finite(values)) fail("{} holds a number that is not finite: not saved", name);
  return values;
}

Json config_json(const Model& model, const std::string& base_model) {
  Json targets = Json::array();
  for (const LoraSpec& spec : lora_specs(model)) {
    const Json name = name_of(spec.projection);
    if (std::find(targets.begin(), targets.end(), name) == targets.end()) targets.push_back(name);
  }
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", base_model},
          {"r", model.lora.rank},
          {"lora_alpha", double{model.lora.alpha}},
          {"lora_dropout", double{model.lora.dropout}},
          {"target_modules", targets},
          {"bias", "none"},
          {"fan_in_fan_out", false},
          {"use_rslora", false},
          {"use_dora", false},
          {"modules_to_save", nullptr},
          {"rank_pattern", Json::object()},
          {"alpha_pattern", Json::object()},
          {"inference_mode", true}};
}

Json parse_lora_config(const std::string& path) {
  const std::string text = read_text_file(path, kMostLoraConfigBytes);
  check_json_depth(text, path);
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) fail("{}: expected a JSON object", path);
  return json;
}

void check_config(const Json& json, const std::string& where) {
  if (json.value("peft_type", Json()) != "LORA")
    fail("{}: peft_type must be \"LORA\", got {}", where, printable(json.value("peft_type", Json()).dump()));
  for (const Refused& each : kRefused) {
    if (!json.contains(each.key) || json[each.key].is_null()) continue;
    const Json& value = json[each.key];
    const bool nothing = value.is_structured() && value.empty();
    if (!nothing && value != Json::parse(each.off))
      fail("{}: {} = {} is not supported: it must be {}", where, each.key, printable(value.dump()), each.off);
  }
}

double number_of(const Json& json, const char* key, const std::string& where) {
  const Json value = json.value(key, Json());
  if (!value.is_number() || !std::isfinite(value.get<float>()))
    fail("{}: '{}' must be a number that f32 holds, got {}", where, key, printable(value.dump()));
  return value.get<double>();
}

// The names of PEFT's list; none where it is a pattern, or not there.
std::vector<std::string> targets_of(const Json& json, const std::string& where) {
  std::vector<std::string> targets;
  const Json value = json.value("target_modules", Json());
  if (value.is_null() || value.is_string()) return targets;
  if (!value.is_array()) fail("{}: 'target_modules' must be a list of names", where);
  for (const Json& each : value) {
    if (!each.is_string()) fail("{}: 'target_modules' must be a list of names", where);
    const auto name = each.get<std::string>();
    targets.push_back(name.substr(name.rfind('.') + 1));  // "self_attn.q_proj" is q_proj
  }
  check_lora_targets(targets, where);
  return targets;
}

// Does every layer have this one's factors?
bool is_wanted(const Json& json, const std::vector<std::string>& targets, const LoraSpec& spec) {
  const bool everywhere =
      json.value("layers_to_transform", Json()).is_null() && json.value("exclude_modules", Json()).is_null();
  return everywhere && std::find(targets.begin(), targets.end(), name_of(spec.projection)) != targets.end();
}

Tensor take_factor(Context& ctx, const Tensor& stored, const Shape& shape, const std::string& name,
                   const std::string& where) {
  const DType type = stored.dtype();
  if (type != DType::kF32 && type != DType::kF16 && type != DType::kBF16)
    fail("{}: {} must be f32, f16 or bf16, got {}", where, name, name_of(type));
  if (stored.shape() != shape)
    fail("{}: {} must be {}, got {}: the LoRA is of another rank, or for another base model", where, name,
         to_string(shape), to_string(stored.shape()));
  // A copy: what is mapped may not outlive the file, nor is it aligned.
  Tensor aligned = Tensor::owned(Device::kCpu, type, shape);
  std::copy_n(static_cast<const std::byte*>(stored.raw()), stored.nbytes(),
              static_cast<std::byte*>(aligned.raw()));
  const Tensor values = convert_tensor(ctx, aligned, DType::kF32);
  if (!all_finite(values)) fail("{}: {} holds a number that is not finite", where, name);
  return values;
}

void refuse_rest(const SafetensorsFile& file, const std::set<std::string, std::less<>>& known,
                 const std::string& where) {
  for (const NamedTensor& tensor : file.tensors()) {
    if (!known.contains(tensor.name))
      fail("{}: {} is no factor of a matrix that this model has", where, printable(tensor.name));
  }
  if (!file.unsupported().empty())
    fail("{}: {} has a type that is not supported", where, printable(file.unsupported()[0].name));
}

}  // namespace

void write_lora(Context& ctx, const std::string& folder, const Model& model, const std::string& base_model,
                DType type) {
  std::vector<NamedTensor> tensors;
  for (const LoraSpec& spec : lora_specs(model)) {
    Tensor b = host_values(ctx, spec.factors->b, name_of_b(spec));
    if (spec.rotated_heads > 0)
      b = reorder_rotary_rows(b, spec.rotated_heads, model.config.rope_style, RopeStyle::kHalves);
    const Tensor a = host_values(ctx, spec.factors->a, name_of_a(spec));
    tensors.push_back({name_of_a(spec), convert_tensor(ctx, a, type)});
    tensors.push_back({name_of_b(spec), convert_tensor(ctx, b, type)});
  }
  write_safetensors(folder + "/" + kLoraTensors, tensors);
  write_file_atomically(
      folder + "/" + kLoraConfig,
      config_json(model, base_model).dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

bool all_finite(const Tensor& tensor) {
  const auto* values = tensor.data<float>();
  return std::all_of(values, values + tensor.numel(), [](float value) { return std::isfinite(value); });
}

Lora read_lora(Context& ctx, const std::string& folder, const ModelConfig& config) {
  const std::string where = folder + "/" + kLoraConfig, path = folder + "/" + kLoraTensors;
  if (!fs::is_regular_file(where)) fail("{} is no LoRA: it has no {}", printable(folder), kLoraConfig);
  const Json json = parse_lora_config(where);
  check_config(json, where);
  if (!fs::exists(path)) fail("{} is no whole LoRA: it has no {}", printable(folder), kLoraTensors);
  const double rank = number_of(json, "r", where);
  if (!(rank >= 1 && rank <= kMostRank && rank == std::floor(rank)))
    fail("{}: 'r' must be a whole number from 1 to {}, got {}", where, kMostRank, rank);
  const std::vector<std::string> targets = targets_of(json, where);
  Lora lora;
  lora.rank = static_cast<int64_t>(rank);
  lora.alpha = static_cast<float>(number_of(json, "lora_alpha", where));
  const auto file = SafetensorsFile::open(path);
  std::set<std::string, std::less<>> known;
  for (const LoraSpec& spec : lora_specs(config, lora)) {
    const std::string name_a = name_of_a(spec), name_b = name_of_b(spec);
    const Tensor *a = file->find(name_a), *b = file->find(name_b);
    if (!a && !b && !is_wanted(json, targets, spec)) continue;
    if (!a || !b) fail("{}: the tensor {} is missing", path, a ? name_b : name_a);
    known.insert(name_a);
    known.insert(name_b);
    spec.factors->a = take_factor(ctx, *a, {lora.rank, spec.in}, name_a, path);
    spec.factors->b = take_factor(ctx, *b, {spec.out, lora.rank}, name_b, path);
    if (spec.rotated_heads > 0)
      spec.factors->b =
          reorder_rotary_rows(spec.factors->b, spec.rotated_heads, RopeStyle::kHalves, config.rope_style);
  }
  refuse_rest(*file, known, path);
  if (known.empty()) fail("{}: it holds no factors", path);
  return lora;
}

}  // namespace fathom
