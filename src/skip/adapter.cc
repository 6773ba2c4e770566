#include "skip/adapter.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/format.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "io/atomic_file.h"
#include "io/atomic_folder.h"
#include "io/safetensors.h"
#include "model/load.h"
#include "skip/lora_files.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kFormatVersion = 1;
constexpr const char *kConfigFile = "adapter_config.json", *kTensorFile = "adapter_model.safetensors";
constexpr const char *kPeftType = "FATHOM_SKIP", *kNamePrefix = "base_model.model.";
constexpr size_t kMostConfigBytes = size_t{16} << 20;
constexpr int kMostDepth = 32;

Json parse_config(const std::string& path) {
  const auto shallow = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kMostDepth) fail("{}: nested more than {} deep", path, kMostDepth);
    return true;
  };
  Json json;
  try {
    json = Json::parse(read_text_file(path, kMostConfigBytes), shallow);
  } catch (const nlohmann::json::exception&) {
    fail("{}: not a JSON file", path);
  }
  if (!json.is_object()) fail("{}: expected a JSON object", path);
  return json;
}

std::string text_of(const Json& object, const char* key, const std::string& where) {
  if (!object.contains(key)) fail("{}: '{}' is missing", where, key);
  if (!object[key].is_string())
    fail("{}: '{}' must be a string, got {}", where, key, printable(object[key].dump()));
  return object[key].get<std::string>();
}

const Json& object_of(const Json& json, const char* key, const std::string& where) {
  if (!json.contains(key) || !json[key].is_object()) fail("{}: '{}' must be an object", where, key);
  return json[key];
}

// Is it an adapter of ours, of a version that we read?
void check_kind(const Json& json, const std::string& where) {
  const std::string type = text_of(json, "peft_type", where);
  if (type != kPeftType) fail("{}: peft_type must be \"{}\", got \"{}\"", where, kPeftType, printable(type));
  if (!json.contains("format_version") || !json["format_version"].is_number_integer())
    fail("{}: 'format_version' must be a whole number", where);
  if (json["format_version"] != kFormatVersion)
    fail("{}: format_version {} is not known, only {} is: a newer fathom wrote it", where,
         printable(json["format_version"].dump()), kFormatVersion);
}

void read_controllers(const Json& json, MethodPolicy& policy, const std::string& where) {
  const std::vector<float*> controllers = policy.controllers();
  if (!json.contains("controllers") || !json["controllers"].is_array())
    fail("{}: 'controllers' must be a list of numbers", where);
  const Json& list = json["controllers"];
  if (list.size() != controllers.size())
    fail("{}: {} has {} controllers, got {}", where, policy.name(), controllers.size(), list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const double value = list[i].is_number() ? list[i].get<double>() : NAN;
    if (!std::isfinite(static_cast<float>(value)))
      fail("{}: controller {} must be a finite number, got {}", where, i, printable(list[i].dump()));
    *controllers[i] = static_cast<float>(value);
  }
}

// Every parameter of the policy from the file, and nothing else in it.
void read_tensors(Context& ctx, const std::string& path, MethodPolicy& policy, const Model& model) {
  const auto file = SafetensorsFile::open(path);
  std::set<std::string, std::less<>> known;
  for (const MethodParameter& parameter : policy.parameters(model.config)) {
    const std::string name = kNamePrefix + parameter.name;
    known.insert(name);
    const Tensor* stored = file->find(name);
    if (!stored) fail("{}: the tensor {} is missing", path, name);
    if (stored->dtype() != DType::kF32 || stored->shape() != parameter.shape)
      fail("{}: {} must be f32 {}, got {} {}", path, name, to_string(parameter.shape),
           name_of(stored->dtype()), to_string(stored->shape()));
    if (!all_finite(*stored)) fail("{}: {} holds a number that is not finite", path, name);
    std::copy_n(stored->data<float>(), stored->numel(), parameter.tensor->data<float>());
    *parameter.tensor = parameter.tensor->to(ctx, model.device);
  }
  for (const NamedTensor& tensor : file->tensors()) {
    if (!known.contains(tensor.name))
      fail("{}: {} is no tensor of {}", path, printable(tensor.name), policy.name());
  }
  if (!file->unsupported().empty())
    fail("{}: {} is no tensor of {}", path, printable(file->unsupported()[0].name), policy.name());
}

// f32 on the host, whatever training held it in.
Tensor host_values(Context& ctx, const MethodParameter& parameter) {
  Tensor values = Tensor::owned(Device::kCpu, DType::kF32, parameter.shape);
  const Tensor here = parameter.tensor->to(ctx, Device::kCpu);
  const Tensor full = here.dtype() == DType::kF32 ? here : convert_tensor(ctx, here, DType::kF32);
  std::copy_n(full.data<float>(), full.numel(), values.data<float>());
  if (!all_finite(values)) fail("{} holds a number that is not finite: not saved", parameter.name);
  return values;
}

Json calibration_json(const std::string& text) {
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) fail("a calibration must be a JSON object, got {}", printable(text));
  return json;
}

Json controllers_json(MethodPolicy& policy) {
  Json list = Json::array();
  for (const float* controller : policy.controllers()) {
    if (!std::isfinite(*controller)) fail("a controller of {} is not finite: not saved", policy.name());
    list.push_back(double{*controller});
  }
  return list;
}

}  // namespace

void save_adapter(Context& ctx, const std::string& folder, MethodPolicy& policy, const Model& model,
                  const AdapterExtra& extra) {
  AtomicFolder out(folder);
  std::vector<NamedTensor> tensors;
  for (const MethodParameter& parameter : policy.parameters(model.config))
    tensors.push_back({kNamePrefix + parameter.name, host_values(ctx, parameter)});
  write_safetensors(out.file(kTensorFile), tensors);
  const std::string base = extra.base_model.empty() ? model.path : extra.base_model;
  if (model.lora.any()) {
    fs::create_directories(out.file(kLoraFolder));
    write_lora(ctx, out.file(kLoraFolder), model, base);
  }
  const Fingerprint print = fingerprint(ctx, model);
  Json json{{"peft_type", kPeftType},
            {"format_version", kFormatVersion},
            {"base_model_name_or_path", base},
            {"target_modules", {"self_attn", "mlp"}},
            {"method", Json::parse(policy.to_json())},
            {"controllers", controllers_json(policy)},
            {"fingerprint",
             {{"shape", print.shape},
              {"tokenizer", print.tokenizer},
              {"norms", print.norms},
              {"projections", extra.projections.empty() ? print.projections : extra.projections}}},
            {"calibration", calibration_json(extra.calibration)}};
  if (!extra.trained.empty()) json["trained"] = calibration_json(extra.trained);
  if (model.lora.any()) json["lora"] = kLoraFolder;
  if (model.lora.round) json["lora_type"] = name_of(*model.lora.round);
  write_file_atomically(out.file(kConfigFile),
                        json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  out.commit();
}

void save_calibration(const std::string& folder, const std::string& calibration) {
  const std::string path = folder + "/" + kConfigFile;
  Json json = parse_config(path);
  check_kind(json, path);
  json["calibration"] = calibration_json(calibration);
  write_file_atomically(path, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

namespace {

// The base's, as the adapter's config has it.
Fingerprint stored_fingerprint(const Json& json, const std::string& where) {
  const Json& print = object_of(json, "fingerprint", where);
  Fingerprint stored{
      text_of(print, "shape", where), text_of(print, "tokenizer", where), text_of(print, "norms", where), {}};
  if (!print.contains("projections")) return stored;
  const Json& list = print["projections"];
  if (!list.is_array() || list.size() != kProjectionCount)
    fail("{}: 'projections' must be a list of {} numbers", where, kProjectionCount);
  for (const Json& each : list) {
    if (!each.is_number()) fail("{}: 'projections' must be a list of {} numbers", where, kProjectionCount);
    stored.projections.push_back(each.get<float>());
  }
  return stored;
}

void check_fingerprint(const Fingerprint& stored, const Fingerprint& model, const std::string& folder,
                       bool force) {
  constexpr double kMostDifference = 0.12;
  const std::string difference = fingerprint_difference(stored, model);
  if (!difference.empty() && !force)
    fail("{}: the adapter does not fit this model: {} (it loads nevertheless where that is forced)",
         printable(folder), difference);
  const double apart = difference.empty() ? projection_difference(stored, model) : 0;
  if (apart > kMostDifference && !force)
    log_warn(
        fmt::format("{} was made for other weights: these are {:.0f} % away (rounding to four bits: 8 %)",
                    printable(folder), 100 * apart));
}

void check_unadapted(const Model& model, const std::string& folder, bool force) {
  if (!model.adapted.empty() && !force)
    fail(
        "{}: the LoRA of {} is part of {} already: this one would be added to it (it is where that is "
        "forced)",
        printable(folder), printable(model.adapted), printable(model.path));
}

DType lora_type_of(const Json& json, const std::string& where) {
  const std::string name = text_of(json, "lora_type", where);
  DType type;
  if (!parse_dtype(name, &type) || !is_block_format(type))
    fail("{}: 'lora_type' must name a block format, got '{}'", where, printable(name));
  return type;
}

// What PEFT wrote: weights change, nothing is skipped.
Adapter load_peft(Context& ctx, const std::string& folder, const Json& json, const Model& model, bool force) {
  check_unadapted(model, folder, force);
  Adapter adapter;
  adapter.lora = read_lora(ctx, folder, model.config);
  adapter.policy = MethodPolicy::from_json(R"({"name": "dense"})", folder);
  const Json base = json.value("base_model_name_or_path", Json());
  if (base.is_string()) adapter.extra.base_model = base.get<std::string>();
  return adapter;
}

}  // namespace

Adapter load_adapter(Context& ctx, const std::string& folder, const Model& model, bool force) {
  const std::string where = folder + "/" + kConfigFile, tensors = folder + "/" + kTensorFile;
  if (!fs::is_regular_file(where)) fail("{} is no adapter: it has no {}", printable(folder), kConfigFile);
  const Json json = parse_config(where);
  if (json.value("peft_type", Json()) == "LORA") return load_peft(ctx, folder, json, model, force);
  check_kind(json, where);
  if (!fs::exists(tensors) && fs::exists(folder + "/adapter_model.bin"))
    fail("{}: adapter_model.bin is a pickle, which may hold code: save it as {}", printable(folder),
         kTensorFile);
  const Fingerprint stored = stored_fingerprint(json, where), own = fingerprint(ctx, model);
  check_fingerprint(stored, own, folder, force);
  Adapter adapter;
  adapter.policy = MethodPolicy::from_json(object_of(json, "method", where).dump(), where);
  try {
    adapter.policy->check(model.config);
    read_tensors(ctx, tensors, *adapter.policy, model);
  } catch (const UserError& error) {
    const std::string difference = fingerprint_difference(stored, own);
    if (difference.empty()) throw;
    fail("{}: the adapter cannot be forced onto this model: {}", printable(folder), difference);
  }
  read_controllers(json, *adapter.policy, where);
  if (json.contains("lora")) {
    if (text_of(json, "lora", where) != kLoraFolder)
      fail("{}: 'lora' must be \"{}\", got {}", where, kLoraFolder, printable(json["lora"].dump()));
    check_unadapted(model, folder, force);
    adapter.lora = read_lora(ctx, folder + "/" + kLoraFolder, model.config);
    if (json.contains("lora_type")) adapter.lora.round = lora_type_of(json, where);
  }
  adapter.extra.projections = stored.projections;
  adapter.extra.base_model = text_of(json, "base_model_name_or_path", where);
  if (json.contains("calibration")) adapter.extra.calibration = object_of(json, "calibration", where).dump();
  if (json.contains("trained")) adapter.extra.trained = object_of(json, "trained", where).dump();
  return adapter;
}

}  // namespace fathom
