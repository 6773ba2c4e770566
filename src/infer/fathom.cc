// The parts of fathom.h that open a model.
#include "infer/fathom.h"

#include "base/format.h"
#include "infer/chat_encoding.h"
#include "infer/model_runtime.h"
#include "infer/sampler.h"

namespace fathom {
namespace {

std::optional<DType> type_named(const char* what, const std::string& name) {
  DType type;
  if (name.empty()) return std::nullopt;
  if (!parse_dtype(name, &type)) fail("{}: there is no type {}", what, printable(name));
  return type;
}

ModelRuntime::Options typed(const RuntimeOptions& options) {
  const std::optional<DeviceName> place = parse_device(options.device);
  if (!place) fail("the device must be {}, got {}", kDeviceNames, printable(options.device));
  ModelRuntime::Options typed;
  typed.source = {
      .model = options.model,
      .tokenizer = options.tokenizer,
      .where = {.device = place->device, .threads = options.threads, .device_index = place->index},
      .weights = type_named("weights", options.weights)};
  typed.adapter = options.adapter;
  typed.lora_mode = options.lora_beside ? LoraMode::kSide : LoraMode::kMerge;
  typed.k_type = typed.v_type = type_named("cache_type", options.cache_type);
  typed.context = options.context;
  return typed;
}

}  // namespace

Runtime Runtime::open(const RuntimeOptions& options) {
  if (options.sequences < 1)
    fail("the cache needs room for at least one sequence, got {}", options.sequences);
  auto runtime = std::make_shared<ModelRuntime>(typed(options));
  runtime->make_cache(-1, options.sequences, EngineOptions().rows);
  return Runtime(std::move(runtime));
}

Request Runtime::request(const std::string& prompt) const {
  Request request;
  request.sampler = with_defaults({}, runtime_->model().generation);
  request.prompt = encode(prompt);
  return request;
}

Request Runtime::request(const std::vector<Message>& conversation) const {
  std::vector<ChatMessage> messages;
  for (const Message& message : conversation) messages.push_back({message.role, message.content});
  Request request;
  request.sampler = with_defaults({}, runtime_->model().generation);
  request.prompt = encode_chat(runtime_->tokenizer(), chat_template_of(runtime_->model(), "auto"), messages);
  return request;
}

std::vector<int32_t> Runtime::encode(const std::string& text) const {
  return runtime_->tokenizer().encode(text);
}
std::string Runtime::decode(const std::vector<int32_t>& ids) const {
  return runtime_->tokenizer().decode(ids);
}
int64_t Runtime::context() const {
  return runtime_->context();
}
int64_t Runtime::layers() const {
  return runtime_->model().config.layers;
}

}  // namespace fathom
