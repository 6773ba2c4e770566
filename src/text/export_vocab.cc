#include "text/export_vocab.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_map>

#include "base/format.h"
#include "io/atomic_file.h"
#include "text/gguf_pre_types.h"
#include "text/vocab_table.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

bool is_added(TokenKind kind) {
  return kind == TokenKind::kControl || kind == TokenKind::kUserDefined || kind == TokenKind::kUnknown;
}

OrderedJson added_tokens(const VocabTable& table) {
  OrderedJson out = OrderedJson::array();
  for (size_t i = 0; i < table.tokens.size(); ++i) {
    if (!is_added(table.kinds[i])) continue;
    out.push_back({{"id", i},
                   {"content", table.tokens[i]},
                   {"single_word", false},
                   {"lstrip", false},
                   {"rstrip", false},
                   {"normalized", false},
                   {"special", table.kinds[i] != TokenKind::kUserDefined}});
  }
  return out;
}

// SentencePiece merges the neighbours whose joined piece has the best score: every way to split a piece into
// two others, the best piece first, ties by the parts' own places.
OrderedJson merges_by_score(const VocabTable& table) {
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t i = 0; i < table.tokens.size(); ++i) ids.emplace(table.tokens[i], i);
  std::vector<std::tuple<float, size_t, size_t>> merges;  // −score, left, right
  for (size_t i = 0; i < table.tokens.size(); ++i) {
    if (table.kinds[i] != TokenKind::kNormal && table.kinds[i] != TokenKind::kUnused) continue;
    const std::string_view token = table.tokens[i];
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ids.find(token.substr(0, cut)), right = ids.find(token.substr(cut));
      if (left != ids.end() && right != ids.end())
        merges.emplace_back(-table.scores[i], left->second, right->second);
    }
  }
  std::sort(merges.begin(), merges.end());
  OrderedJson out = OrderedJson::array();
  for (const auto& [score, left, right] : merges) out.push_back({table.tokens[left], table.tokens[right]});
  return out;
}

OrderedJson byte_level_pre_tokenizer(const VocabTable& table) {
  OrderedJson parts = OrderedJson::array();
  for (const std::string& cut : gguf_pre_cuts(table.pre)) {
    parts.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", cut}}}, {"behavior", "Isolated"}, {"invert", false}});
  }
  parts.push_back(
      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}});
  return {{"type", "Sequence"}, {"pretokenizers", parts}};
}

// BOS before and EOS after, as the vocabulary says.
OrderedJson post_processor(const VocabTable& table) {
  OrderedJson single = OrderedJson::array(), pair = OrderedJson::array(), special = OrderedJson::object();
  const auto add = [&](int32_t id) {
    const std::string& token = table.tokens[static_cast<size_t>(id)];
    special[token] = {{"id", token}, {"ids", {id}}, {"tokens", {token}}};
    single.push_back({{"SpecialToken", {{"id", token}, {"type_id", 0}}}});
    pair.push_back(single.back());
  };
  if (table.adds_bos && table.bos >= 0) add(table.bos);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  pair.push_back(single.back());
  pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
  if (table.adds_eos && table.eos >= 0) add(table.eos);
  if (special.empty()) return nullptr;
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", special}};
}

OrderedJson normalizer_of(const VocabTable& table) {
  if (table.byte_level) return nullptr;
  OrderedJson parts = OrderedJson::array();
  if (table.adds_space_prefix) parts.push_back({{"type", "Prepend"}, {"prepend", "\u2581"}});
  parts.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}});
  return {{"type", "Sequence"}, {"normalizers", parts}};
}

OrderedJson decoder_of(const VocabTable& table) {
  if (table.byte_level)
    return {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
  OrderedJson parts = OrderedJson::array();
  parts.push_back({{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}});
  parts.push_back({{"type", "ByteFallback"}});
  parts.push_back({{"type", "Fuse"}});
  if (table.adds_space_prefix)
    parts.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return {{"type", "Sequence"}, {"decoders", parts}};
}

OrderedJson model_of(const VocabTable& table) {
  OrderedJson vocab = OrderedJson::object(), merges = OrderedJson::array();
  auto& entries = vocab.get_ref<OrderedJson::object_t&>();  // by hand: looking each key up first would take
                                                            // time quadratic in their number
  for (size_t i = 0; i < table.tokens.size(); ++i) entries.push_back({table.tokens[i], OrderedJson(i)});
  if (table.byte_level) {
    for (const std::string& merge : table.merges) merges.push_back(merge);
  } else {
    merges = merges_by_score(table);
  }
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", table.unknown >= 0 ? OrderedJson(table.tokens[static_cast<size_t>(table.unknown)])
                                           : OrderedJson(nullptr)},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", !table.byte_level},
          {"byte_fallback", !table.byte_level},
          {"ignore_merges", table.byte_level && gguf_pre_ignores_merges(table.pre)},
          {"vocab", vocab},
          {"merges", merges}};
}

OrderedJson tokenizer_config(const VocabTable& table) {
  OrderedJson json{{"tokenizer_class", "PreTrainedTokenizerFast"},
                   {"add_bos_token", table.adds_bos},
                   {"add_eos_token", table.adds_eos},
                   {"clean_up_tokenization_spaces", false}};
  if (table.unknown >= 0) json["unk_token"] = table.tokens[static_cast<size_t>(table.unknown)];
  if (table.bos >= 0) json["bos_token"] = table.tokens[static_cast<size_t>(table.bos)];
  if (table.eos >= 0) json["eos_token"] = table.tokens[static_cast<size_t>(table.eos)];
  if (!table.chat_template.empty()) json["chat_template"] = table.chat_template;
  return json;
}

void copy_as(const fs::path& source, const fs::path& target) {
  std::error_code error;
  fs::copy_file(source, target, error);
  if (error) fail("cannot copy {} to {}: {}", source.string(), target.string(), error.message());
}

void copy_files(const fs::path& source, const fs::path& target) {
  for (const char* name :
       {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "vocab.json",
        "merges.txt", "added_tokens.json", "chat_template.jinja", "chat_template.json"}) {
    if (fs::exists(source / name)) copy_as(source / name, target / name);
  }
}

// Readers of GGUF put the prefix after user-defined tokens too; SentencePiece does not.
void refuse_other_prefix(const std::string& source, const VocabTable& table) {
  if (table.byte_level || table.prefix_after_special || !table.adds_space_prefix) return;
  const auto it = std::find(table.kinds.begin(), table.kinds.end(), TokenKind::kUserDefined);
  if (it == table.kinds.end()) return;
  fail("{}: GGUF cannot say that no space is added after the user-defined token '{}'", source,
       printable(table.tokens[static_cast<size_t>(it - table.kinds.begin())]));
}

// JSON is UTF-8; a vocabulary may hold tokens that are not.
std::string text_of(const OrderedJson& json, int indent, const std::string& source) {
  try {
    return json.dump(indent) + "\n";
  } catch (const OrderedJson::exception&) {
    fail("{}: a token is not UTF-8, and tokenizer.json can hold no other", source);
  }
}

}  // namespace

std::vector<GgufKeyValue> vocab_to_gguf(const std::string& source, int64_t vocab) {
  VocabTable table = read_vocab_table(source, vocab);
  refuse_other_prefix(source, table);
  while (static_cast<int64_t>(table.tokens.size()) < vocab) {  // a matrix padded past the vocabulary
    table.tokens.push_back(fmt::format("[PAD{}]", table.tokens.size()));
    table.kinds.push_back(TokenKind::kUnused);
    if (!table.byte_level) table.scores.push_back(0);
  }
  std::vector<GgufKeyValue> out;
  const auto text = [&](const char* key, const std::string& value) {
    out.push_back({key, {GgufType::kString, value}});
  };
  const auto flag = [&](const char* key, bool value) {
    out.push_back({key, {GgufType::kBool, int64_t{value}}});
  };
  const auto id = [&](const char* key, int32_t value) {
    if (value >= 0) out.push_back({key, {GgufType::kU32, int64_t{value}}});
  };
  text("tokenizer.ggml.model", table.byte_level ? "gpt2" : "llama");
  text("tokenizer.ggml.pre", table.byte_level ? table.pre : "default");
  out.push_back({"tokenizer.ggml.tokens", {GgufType::kArray, GgufArray{GgufType::kString, table.tokens}}});
  std::vector<int64_t> kinds;
  for (TokenKind kind : table.kinds) kinds.push_back(static_cast<int64_t>(kind));
  out.push_back({"tokenizer.ggml.token_type", {GgufType::kArray, GgufArray{GgufType::kI32, kinds}}});
  if (table.byte_level) {
    out.push_back({"tokenizer.ggml.merges", {GgufType::kArray, GgufArray{GgufType::kString, table.merges}}});
  } else {
    const std::vector<double> scores(table.scores.begin(), table.scores.end());
    out.push_back({"tokenizer.ggml.scores", {GgufType::kArray, GgufArray{GgufType::kF32, scores}}});
    flag("tokenizer.ggml.add_space_prefix", table.adds_space_prefix);
  }
  id("tokenizer.ggml.bos_token_id", table.bos);
  id("tokenizer.ggml.eos_token_id", table.eos);
  id("tokenizer.ggml.unknown_token_id", table.unknown);
  flag("tokenizer.ggml.add_bos_token", table.adds_bos);
  flag("tokenizer.ggml.add_eos_token", table.adds_eos);
  if (!table.chat_template.empty()) text("tokenizer.chat_template", table.chat_template);
  return out;
}

void vocab_to_hf(const std::string& source, int64_t vocab, const std::string& target) {
  const fs::path path(source), folder(target);
  if (fs::is_directory(path)) return copy_files(path, folder);
  if (path.extension() == ".json" || path.extension() == ".model") {  // with what stands beside it
    copy_as(path, folder / ("tokenizer" + path.extension().string()));
    for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"}) {
      if (fs::exists(path.parent_path() / name)) copy_as(path.parent_path() / name, folder / name);
    }
    return;
  }
  const VocabTable table = read_vocab_table(source, vocab);
  const OrderedJson json{
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added_tokens(table)},
      {"normalizer", normalizer_of(table)},
      {"pre_tokenizer", table.byte_level ? byte_level_pre_tokenizer(table) : OrderedJson(nullptr)},
      {"post_processor", post_processor(table)},
      {"decoder", decoder_of(table)},
      {"model", model_of(table)}};
  write_file_atomically(target + "/tokenizer.json", text_of(json, 1, source));
  write_file_atomically(target + "/tokenizer_config.json", text_of(tokenizer_config(table), 2, source));
}

}  // namespace fathom
