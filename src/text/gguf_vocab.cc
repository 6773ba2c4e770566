// tokenizer_from_gguf(): the vocabularies "gpt2" (with every tokenizer.ggml.pre) and "llama" of GGUF files.
#include <algorithm>

#include "base/format.h"
#include "io/gguf.h"
#include "text/bpe.h"
#include "text/byte_level.h"
#include "text/gguf_pre_types.h"
#include "text/hf_tokenizer.h"
#include "text/pipeline_tokenizer.h"

namespace fathom {
namespace {

// tokenizer.ggml.token_type
enum GgufTokenType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

struct GgufTokens {
  std::vector<std::string> texts;
  std::vector<int64_t> types;  // as many
  std::vector<float> scores;   // as many, or none
};

template <class T>
const std::vector<T>* list_of(const GgufFile& file, const char* key) {
  const GgufArray* array = file.array(key);
  if (array == nullptr) return nullptr;
  const auto* values = std::get_if<std::vector<T>>(&array->values);
  require(values != nullptr, "{}: gguf: '{}' has elements of another type than expected", file.path(), key);
  return values;
}

GgufTokens read_tokens(const GgufFile& file) {
  GgufTokens tokens;
  const auto* texts = list_of<std::string>(file, "tokenizer.ggml.tokens");
  require(texts != nullptr && !texts->empty(), "{}: gguf: there is no vocabulary (tokenizer.ggml.tokens)",
          file.path());
  require(texts->size() < INT32_MAX / 2, "{}: gguf: a vocabulary of {} tokens", file.path(), texts->size());
  tokens.texts = *texts;
  for (size_t i = 0; i < tokens.texts.size(); ++i) {
    if (tokens.texts[i].empty()) tokens.texts[i] = fmt::format("[EMPTY_{}]", i);
  }
  tokens.types.assign(texts->size(), kNormal);
  if (const auto* types = list_of<int64_t>(file, "tokenizer.ggml.token_type")) {
    require(types->size() == texts->size(), "{}: gguf: {} token types for {} tokens", file.path(),
            types->size(), texts->size());
    tokens.types = *types;
  }
  if (const auto* scores = list_of<double>(file, "tokenizer.ggml.scores")) {
    require(scores->size() == texts->size(), "{}: gguf: {} scores for {} tokens", file.path(), scores->size(),
            texts->size());
    for (const double score : *scores) tokens.scores.push_back(static_cast<float>(score));
  }
  return tokens;
}

int32_t token_id(const GgufFile& file, const char* key, int64_t fallback, size_t count) {
  const int64_t id = file.integer(key, fallback);
  if (id == -1 || (file.find(key) == nullptr && id >= static_cast<int64_t>(count))) return -1;
  require(id >= 0 && id < static_cast<int64_t>(count), "{}: gguf: '{}' is {}, but there are {} tokens",
          file.path(), key, id, count);
  return static_cast<int32_t>(id);
}

// Phi-3's special tokens take the spaces after them. GGUF has no field for that; the model's name is what
// there is.
bool strips_after_special(const GgufFile& file) {
  std::string name = file.string("general.name", "");
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name.find("phi-3") != std::string::npos || name.find("phi3") != std::string::npos;
}

void add_special_tokens(const GgufFile& file, const GgufTokens& tokens, TokenizerParts& parts) {
  const bool strips = strips_after_special(file);
  for (size_t i = 0; i < tokens.texts.size(); ++i) {
    const int64_t type = tokens.types[i];
    if (type != kControl && type != kUserDefined && type != kUnknown) continue;
    AddedToken token{static_cast<int32_t>(i), tokens.texts[i], type != kUserDefined};
    const std::string& text = token.content;
    token.rstrip = strips && text != "<unk>" && text != "<s>" && text != "<|endoftext|>";
    parts.added.add(std::move(token));
  }
}

void add_bos_eos(const GgufFile& file, bool add_bos, TokenizerParts& parts) {
  if (file.boolean("tokenizer.ggml.add_bos_token", add_bos) && parts.bos >= 0) parts.before = {parts.bos};
  if (file.boolean("tokenizer.ggml.add_eos_token", false) && parts.eos >= 0) parts.after = {parts.eos};
}

Vocabulary build_vocabulary(const GgufFile& file, const GgufTokens& tokens, TokenizerParts& parts) {
  Vocabulary vocabulary;
  size_t bytes = 0;
  for (const std::string& text : tokens.texts) bytes += text.size();
  vocabulary.reserve(tokens.texts.size(), bytes);
  std::string spelt;
  for (size_t i = 0; i < tokens.texts.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    if (!parts.byte_level) {
      vocabulary.add(tokens.texts[i], id);
    } else if (from_byte_level(tokens.texts[i], &spelt)) {
      vocabulary.add(spelt, id);
    } else {
      parts.unspelt[id] = tokens.texts[i];
    }
  }
  require(vocabulary.distinct() == vocabulary.count(), "{}: gguf: a token is in the vocabulary twice",
          file.path());
  return vocabulary;
}

std::vector<std::pair<std::string, std::string>> read_merges(const GgufFile& file) {
  const auto* list = list_of<std::string>(file, "tokenizer.ggml.merges");
  require(list != nullptr, "{}: gguf: there are no merges (tokenizer.ggml.merges)", file.path());
  std::vector<std::pair<std::string, std::string>> merges;
  merges.reserve(list->size());
  for (const std::string& merge : *list) {
    const size_t space = merge.find(' ', 1);
    if (!(space != std::string::npos)) {
      fail("{}: gguf: the merge '{}' is not two tokens with a space between", file.path(), printable(merge));
    }
    merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  return merges;
}

void build_bpe(const GgufFile& file, const GgufTokens& tokens, std::string_view pre, TokenizerParts& parts) {
  const GgufPreType type = gguf_pre_type(pre, parts.pre_tokenizer);
  parts.byte_level = !type.raw_text;
  BpeOptions options;
  options.ignore_merges = type.ignore_merges;
  options.whole_newlines = type.whole_newlines;
  options.byte_level = parts.byte_level;
  if (parts.byte_level) {
    parts.pre_tokenizer.add_byte_level(false, false);
    parts.decoder.add_byte_level();
  } else {
    options.byte_fallback = true;
    parts.normalizer.add_replace(std::string(" "), "\u2581");
    parts.decoder.add_replace("\u2581", " ");
    parts.decoder.add_byte_fallback();
  }
  parts.kind = fmt::format("GGUF BPE ({})", pre.empty() ? "default" : pre);
  const size_t count = tokens.texts.size();
  parts.bos = token_id(file, "tokenizer.ggml.bos_token_id", -1, count);
  parts.eos = token_id(file, "tokenizer.ggml.eos_token_id", -1, count);
  Vocabulary vocabulary = build_vocabulary(file, tokens, parts);
  MergeTable merges = resolve_merges(read_merges(file), vocabulary, parts.byte_level, file.path() + ": gguf");
  parts.model = std::make_unique<BpeModel>(std::move(vocabulary), std::move(merges), options);
  add_bos_eos(file, type.add_bos, parts);
}

void build_spm(const GgufFile& file, const GgufTokens& tokens, TokenizerParts& parts) {
  require(!tokens.scores.empty(), "{}: gguf: a 'llama' vocabulary must have scores (tokenizer.ggml.scores)",
          file.path());
  const size_t count = tokens.texts.size();
  Vocabulary vocabulary = build_vocabulary(file, tokens, parts);
  RankedBpeOptions options;
  options.byte_ids = byte_token_ids(vocabulary);
  options.unk = token_id(file, "tokenizer.ggml.unknown_token_id", 0, count);
  options.ranks = ranks_of_scores(tokens.scores);
  for (size_t i = 0; i < count; ++i) {
    const int64_t type = tokens.types[i];
    if (type == kControl || type == kUnknown || type == kByte) options.ranks[i] = BpeMerge::kNone;
  }
  const bool prefix = file.boolean("tokenizer.ggml.add_space_prefix", true);
  if (prefix) parts.normalizer.add_prepend(" ");
  parts.normalizer.add_replace(std::string(" "), "\u2581");
  parts.decoder.add_byte_fallback();
  parts.decoder.add_sentencepiece(prefix, false);
  parts.kind = "GGUF SentencePiece BPE";
  parts.bos = token_id(file, "tokenizer.ggml.bos_token_id", 1, count);
  parts.eos = token_id(file, "tokenizer.ggml.eos_token_id", 2, count);
  parts.model = std::make_unique<RankedBpeModel>(std::move(vocabulary), std::move(options));
  add_bos_eos(file, true, parts);
}

}  // namespace

std::shared_ptr<const Tokenizer> tokenizer_from_gguf(const GgufFile& file) {
  const std::string model = file.string("tokenizer.ggml.model", "");
  require(!model.empty(), "{}: gguf: there is no vocabulary (tokenizer.ggml.model)", file.path());
  require(
      model == "gpt2" || model == "llama" || model == "gemma4",
      "{}: gguf: the tokenizer '{}' (tokenizer.ggml.model) is not supported, only gpt2, llama and gemma4 are",
      file.path(), printable(model));
  const GgufTokens tokens = read_tokens(file);
  TokenizerParts parts;
  if (model == "llama") {
    build_spm(file, tokens, parts);
  } else {
    build_bpe(file, tokens, model == "gemma4" ? "gemma4" : file.string("tokenizer.ggml.pre", ""), parts);
  }
  add_special_tokens(file, tokens, parts);
  // Nothing here pads: an id that no token has, which some files name, is none.
  const int64_t pad = file.integer("tokenizer.ggml.padding_token_id", -1);
  if (pad >= 0 && pad < std::ssize(tokens.texts)) parts.pad = static_cast<int32_t>(pad);
  auto tokenizer = std::make_shared<PipelineTokenizer>(std::move(parts));
  tokenizer->set_chat_template(file.string("tokenizer.chat_template", ""));
  return tokenizer;
}

}  // namespace fathom
