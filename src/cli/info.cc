// fathom info: what a model's files hold.
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/fields.h"
#include "base/format.h"
#include "base/progress.h"
#include "cli/output.h"
#include "cli/session.h"
#include "cli/verbs.h"
#include "infer/calibrate.h"
#include "infer/fathom.h"
#include "infer/model_path.h"
#include "io/file_kind.h"
#include "io/gguf.h"
#include "model/kv_cache.h"
#include "model/weights.h"
#include "quant/formats.h"
#include "skip/adapter.h"
#include "text/chat_template.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

Json metadata_value(const GgufValue& value) {
  if (const auto* i = std::get_if<int64_t>(&value.value))
    return value.type == GgufType::kBool ? Json(*i != 0) : Json(*i);
  if (const auto* d = std::get_if<double>(&value.value)) return *d;
  if (const auto* s = std::get_if<std::string>(&value.value)) return *s;
  const auto& values = std::get<GgufArray>(value.value).values;
  return std::visit([](const auto& list) { return fmt::format("list of {}", list.size()); }, values);
}

Json metadata_of(const GgufFile& file) {
  Json out = Json::object();
  for (const GgufKeyValue& pair : file.metadata()) out[pair.key] = metadata_value(pair.value);
  return out;
}

Json token_json(const Tokenizer& tokenizer, int32_t id) {
  return id < 0 ? Json() : Json{{"id", id}, {"token", tokenizer.token(id)}};
}

// The format's name, or why there is none.
std::string template_text(const Tokenizer& tokenizer) {
  if (tokenizer.chat_template().empty()) return "none";
  try {
    return ChatTemplate::recognise(tokenizer.chat_template(), "", "").format().name;
  } catch (const UserError&) {
    return "unknown";
  }
}

Json tokenizer_json(const Tokenizer& tokenizer) {
  Json out;
  out["kind"] = tokenizer.kind();
  out["tokens"] = tokenizer.vocab_size();
  out["bos"] = token_json(tokenizer, tokenizer.bos());
  out["adds_bos"] = tokenizer.adds_bos();
  out["eos"] = token_json(tokenizer, tokenizer.eos());
  out["adds_eos"] = tokenizer.adds_eos();
  out["chat_template"] = template_text(tokenizer);
  return out;
}

struct TypeUse {
  int64_t tensors = 0, parameters = 0, bytes = 0;
};

Json dtypes_json(const std::map<DType, TypeUse>& uses) {
  Json out = Json::object();
  for (const auto& [type, use] : uses) {
    out[name_of(type)] = {{"tensors", use.tensors},
                          {"parameters", use.parameters},
                          {"bytes", use.bytes},
                          {"slow", !has_dot_kernel(type)}};
  }
  return out;
}

int64_t cache_bytes_per_token(const ModelConfig& c, DType type) {
  return c.layers * c.kv_heads * row_bytes(type, c.head_dim) * 2;
}

// Keys and values of every layer, of one token and of a full context, in each type that the cache can have.
Json cache_json(const ModelConfig& c) {
  Json out;
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0}) {
    if (c.head_dim % traits(type).block != 0) continue;
    const int64_t one = cache_bytes_per_token(c, type);
    const int64_t pages = KvCache::pages_for_rows(c, c.context, EngineOptions().rows);
    const int64_t all = pages * KvCache::kPage * one / c.layers;
    out[name_of(type)] = {{"bytes_per_token", one}, {"bytes_full_context", all}};
  }
  return out;
}

Json model_json(const Model& model) {
  const ModelConfig& c = model.config;
  std::map<DType, TypeUse> uses;
  for (const WeightSpec& spec : weight_specs(model)) {
    TypeUse& use = uses[spec.tensor->dtype()];
    ++use.tensors;
    use.parameters += spec.tensor->numel();
    use.bytes += spec.tensor->nbytes();
  }
  int64_t windows = 0;
  for (int32_t window : c.windows) windows += window > 0;
  Json out;
  out["architecture"] = c.architecture;
  out["format"] = model.format;
  out["parameters"] = model.parameters();
  out["layers"] = c.layers;
  out["width"] = c.width;
  out["heads"] = c.heads;
  out["kv_heads"] = c.kv_heads;
  out["head_dim"] = c.head_dim;
  out["ffn_width"] = c.ffn_width;
  out["vocab"] = c.vocab;
  out["context"] = c.context;
  out["windowed_layers"] = windows;
  out["tied_output"] = c.tied;
  out["dtypes"] = dtypes_json(uses);
  out["weight_bytes"] = model.weight_bytes();
  out["cache_bytes_per_token"] = cache_bytes_per_token(c, DType::kF16);
  out["cache"] = cache_json(c);
  out["method"] = "dense";
  out["calibration"] = nullptr;
  ModelConfig config = c;  // every switch of the architecture
  out["config"] = Json::parse(fields_to_json(fields_of(config)));
  if (model.tokenizer) out["tokenizer"] = tokenizer_json(*model.tokenizer);
  if (model.gguf) out["metadata"] = metadata_of(*model.gguf);
  return out;
}

// A GGUF that is no model we can run: a vocabulary alone, or an architecture that is not known.
Json gguf_json(const std::string& path, const std::string& why) {
  const auto file = GgufFile::open(path);
  std::map<DType, TypeUse> uses;
  int64_t parameters = 0;
  for (const GgufTensorInfo& info : file->tensors()) {
    TypeUse& use = uses[info.dtype];
    ++use.tensors;
    use.parameters += info.shape.numel();
    use.bytes += info.shape.numel() / info.shape.last() * row_bytes(info.dtype, info.shape.last());
    parameters += info.shape.numel();
  }
  const std::string architecture = file->string("general.architecture", "unknown");
  Json out;
  out["architecture"] = architecture;
  out["format"] = "gguf";
  out["parameters"] = parameters;
  out["layers"] = file->integer(architecture + ".block_count", 0);
  out["dtypes"] = dtypes_json(uses);
  if (file->tensors().empty()) {
    out["vocabulary_only"] = true;
  } else {
    out["runs"] = false;
    out["why_not"] = why;
  }
  try {
    out["tokenizer"] = tokenizer_json(*tokenizer_from_gguf(*file));
  } catch (const UserError& error) {
    out["tokenizer"] = {{"error", error.what()}};
  }
  out["metadata"] = metadata_of(*file);
  return out;
}

int64_t bytes_on_disk(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return static_cast<int64_t>(fs::file_size(path, error));
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(path, error)) {
    if (entry.path().extension() == ".safetensors")
      bytes += static_cast<int64_t>(fs::file_size(entry.path(), error));
  }
  return bytes;
}

// The method of an adapter, or of the folder that a model was trained into.
Json method_json(const std::string& folder, LoadedModel& loaded, bool force) {
  Adapter adapter = load_adapter(*loaded.ctx, folder, loaded.model, force);
  int64_t parameters = 0;
  for (const MethodParameter& own : adapter.policy->describe(loaded.model.config))
    parameters += own.shape.numel();
  Json out;
  out["method"] = adapter.policy->name();
  out["method_parameters"] = parameters;
  if (const Lora& lora = adapter.lora; lora.any()) {
    Model adapted;
    adapted.config = loaded.model.config;
    adapted.lora = lora;
    int64_t size = 0;
    for (const LoraSpec& spec : lora_specs(adapted)) size += lora.rank * (spec.in + spec.out);
    out["lora_rank"] = lora.rank;
    out["lora_alpha"] = short_decimal(lora.alpha);
    out["lora_parameters"] = size;
    if (lora.round) out["lora_type"] = name_of(*lora.round);
  }
  out["method_config"] = Json::parse(adapter.policy->to_json());
  out["calibration"] = Json::object();
  out["cache_held"] = Json::object();
  const bool all = adapter.policy->skipped_kv(false, loaded.model.config, loaded.model.config.layers - 1) ==
                   SkippedKv::kProject;  // every row leaves an entry
  for (const Calibration& table :
       calibrations_from_json(adapter.extra.calibration, 2 * loaded.model.config.layers, printable(folder))) {
    Json budgets = Json::array(), held = Json::array();
    for (const CalibrationPoint& point : table.asked()) {
      budgets.push_back(short_decimal(point.budget));
      held.push_back(all ? Json(1.0) : std::isfinite(point.held) ? Json(short_decimal(point.held)) : Json());
    }
    out["calibration"][table.weight_type] = budgets;
    out["cache_held"][table.weight_type] = held;
  }
  return out;
}

// model_json(), and the method where there is one.
Json model_and_method_json(const ModelOptions& o) {
  LoadedModel loaded = load_named(load_request(o));
  Json out = model_json(loaded.model);
  if (!o.adapter.empty()) {
    out.update(method_json(o.adapter, loaded, o.force_adapter));
  } else if (const std::string own = own_method(loaded.model.path); !own.empty()) {
    out.update(method_json(own, loaded, true));
  }
  return out;
}

std::string plain(const Json& value) {
  return value.is_string() ? printable(value.get<std::string>(), 100) : value.dump();
}

void print_plain(const Json& info) {
  std::string text;
  for (const auto& [key, value] : info.items()) {
    if (value.is_object()) continue;
    const bool bytes = key.find("bytes") != std::string::npos;
    text += fmt::format("{:<22} {}\n", key, bytes ? bytes_text(value.get<int64_t>()) : plain(value));
  }
  for (const auto& [type, use] : info["dtypes"].items()) {
    text += fmt::format("{:<22} {} tensors, {} parameters, {}{}\n", "weights " + type, plain(use["tensors"]),
                        plain(use["parameters"]), bytes_text(use["bytes"].get<int64_t>()),
                        use["slow"].get<bool>() ? " (slow: decoded before every product)" : "");
  }
  if (info.contains("tokenizer")) {
    for (const auto& [key, value] : info["tokenizer"].items()) {
      const std::string shown = value.is_object()
                                    ? fmt::format("{} '{}'", plain(value["id"]), plain(value["token"]))
                                    : plain(value);
      text += fmt::format("{:<22} {}\n", "tokenizer " + key, shown);
    }
  }
  if (info.contains("cache")) {
    for (const auto& [type, bytes] : info["cache"].items())
      text += fmt::format("{:<22} {} a token, {} for a full context\n", "cache " + type,
                          bytes_text(bytes["bytes_per_token"].get<int64_t>()),
                          bytes_text(bytes["bytes_full_context"].get<int64_t>()));
  }
  if (info.contains("cache_held")) {
    for (const auto& [type, budgets] : info["calibration"].items())
      text += fmt::format("{:<22} {}, holding {} of a dense cache\n", "budgets for " + printable(type),
                          budgets.dump(), info["cache_held"][type].dump());
  }
  if (info.contains("metadata")) {
    for (const auto& [key, value] : info["metadata"].items())
      text += fmt::format("  {} = {}\n", printable(key), plain(value));
  }
  print(text);
}

}  // namespace

int run_info(const Arguments& arguments) {
  Args args("info", "Says what a model's files hold. Nothing is computed.",
            "fathom info -m SmolLM2-135M-Instruct.Q4_1.gguf --json");
  ModelOptions o;
  add_model_options(args, o, false);
  args.text("--adapter", o.adapter, "DIR", "Adapter of a skipping method, to describe too");
  args.flag("--force-adapter", o.force_adapter, "Use the adapter although it was made for other weights");
  if (!args.parse(arguments)) return 0;
  check_model_options(args, o);
  const ModelFiles files = find_model(o.model);
  Json info;
  info["path"] = files.model;
  info["file_bytes"] = bytes_on_disk(files.model);
  const bool gguf = file_kind(files.model) == FileKind::kGguf;
  try {
    const bool vocabulary = gguf && GgufFile::open(files.model)->tensors().empty();
    info.update(vocabulary ? gguf_json(files.model, "") : model_and_method_json(o));
  } catch (const UserError& error) {
    if (!gguf) throw;
    info.update(gguf_json(files.model, error.what()));
  }
  if (o.json) {
    print_json(info);
  } else {
    print_plain(info);
  }
  return 0;
}

}  // namespace fathom
