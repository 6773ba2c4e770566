#include "cli/session.h"

#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/log.h"
#include "text/unicode.h"

namespace fathom {
namespace {

std::optional<DType> cache_type(const char* option, const std::string& name) {
  if (name.empty()) return std::nullopt;
  DType type;
  const bool known = parse_dtype(name, &type) && (type == DType::kF32 || type == DType::kF16 ||
                                                  type == DType::kBF16 || type == DType::kQ8_0);
  if (!known)
    throw UsageError(
        fmt::format("{} must be one of f32, f16, bf16, q8_0, got '{}'", option, printable(name)));
  return type;
}

}  // namespace

LoadRequest load_request(const ModelOptions& options) {
  return {.model = options.model,
          .tokenizer = options.tokenizer,
          .where = context_options(options.device, options.threads),
          .weights = weight_type("--dtype", options.dtype),
          .map_file = !options.no_mmap};
}

namespace {

ModelRuntime::Options runtime_options(const ModelOptions& options) {
  ModelRuntime::Options all;
  all.k_type = cache_type("-ctk", options.key_type);
  all.v_type = cache_type("-ctv", options.value_type);
  all.source = load_request(options);
  all.adapter = options.adapter;
  all.force_adapter = options.force_adapter;
  all.lora_mode = options.lora_mode == "side" ? LoraMode::kSide : LoraMode::kMerge;
  all.dense = options.dense;
  all.context = options.context;
  if (!options.quality.empty()) {
    all.quality = quality_option(options.quality);
  } else if (options.has_budget || options.saved != 0 || options.budget != 1) {
    all.budget = options.saved != 0 ? 1 - options.saved : options.budget;
  }
  all.masked = options.execution == "masked";
  all.batch_quantile = !options.decide.empty();
  return all;
}

}  // namespace

Session::Session(const ModelOptions& options) try : ModelRuntime(runtime_options(options)) {
} catch (const NoCalibration& error) {
  fail_without_calibration(error, options.model, options.adapter);
}

ChatTemplate chat_template_option(const Session& session, const std::string& name) {
  session.tokenizer();  // none: its error says what to give
  try {
    return from_option("--chat-template", [&] { return chat_template_of(session.model(), name); });
  } catch (const NoChatTemplate& error) {
    fail("{}; choose one with --chat-template: {}", error.what(), ChatTemplate::known_names());
  }
}

void fail_without_calibration(const NoCalibration& error, const std::string& model,
                              const std::string& adapter) {
  const std::string beside = adapter.empty() ? "" : fmt::format(" --adapter {}", printable(adapter));
  fail("{}: make one with fathom calibrate -m {}{} --data FILE", error.what(), printable(model), beside);
}

const Tokenizer& Session::tokenizer() const {
  if (!model().tokenizer)
    fail("{}: there is no tokenizer with this model: give one with --tokenizer", printable(model().path));
  return *model().tokenizer;
}

std::string read_input(const std::string& path) {
  if (path != "-") return read_text_file(path);
  std::string text{std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
  if (std::cin.bad()) fail("reading stdin failed");
  return text;
}

void warn_about_bytes(const std::string& text) {
  if (is_valid_utf8(text)) return;
  size_t at = 0;
  for (Utf8Char next = decode_utf8(text, at); next.valid; next = decode_utf8(text, at)) at += next.size;
  log_warn(
      fmt::format("the text is no UTF-8: byte {} is 0x{:02x}; such bytes become tokens of one byte, or are "
                  "lost where the vocabulary has none",
                  at, static_cast<unsigned char>(text[at])));
}

std::vector<int32_t> read_ids(const std::string& path, int64_t vocab) {
  const nlohmann::json list = nlohmann::json::parse(read_input(path), nullptr, false);
  if (!list.is_array())
    fail("{}: expected a JSON list of token ids, got {}", printable(path),
         list.is_discarded() ? "no JSON" : list.type_name());
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const auto& entry : list) {
    const bool good = entry.is_number_integer() && entry >= 0 && entry < vocab;
    if (!good) {
      fail("{}: entry {} must be a token id from 0 to {}, got {}", printable(path), ids.size(), vocab - 1,
           printable(entry.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace), 40));
    }
    ids.push_back(entry.get<int32_t>());
  }
  return ids;
}

}  // namespace fathom
