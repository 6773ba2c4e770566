#include "text/vocab_table.h"

#include <bit>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/mapped_file.h"
#include "io/gguf.h"
#include "text/gguf_pre_types.h"
#include "text/protobuf_reader.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

bool is_byte_token(const std::string& text) { return text.size() == 6 && text.starts_with("<0x") && text.ends_with(">"); }

void set_token(VocabTable& table, int64_t id, const std::string& text, TokenKind kind) {
  const auto at = static_cast<size_t>(id);
  if (table.tokens.size() <= at) {
    table.tokens.resize(at + 1);
    table.kinds.resize(at + 1, TokenKind::kUnused);
  }
  table.tokens[at] = text;
  table.kinds[at] = kind;
}

// The patterns that a pre-tokenizer cuts with, in order; `known` becomes false at anything else.
void collect_cuts(const Json& pre, std::vector<std::string>& cuts, bool& known) {
  const std::string type = pre.is_object() ? pre.value("type", "") : "";
  if (type == "Sequence") {
    for (const Json& part : pre.at("pretokenizers")) collect_cuts(part, cuts, known);
  } else if (type == "Split" && pre.at("pattern").contains("Regex") && !pre.value("invert", false) &&
             pre.value("behavior", "") == "Isolated") {
    cuts.push_back(pre.at("pattern").at("Regex").get<std::string>());
  } else if (type == "Digits" && pre.value("individual_digits", false)) {
    cuts.emplace_back("\\p{N}");
  } else if (type == "ByteLevel" && !pre.value("add_prefix_space", false)) {
    if (pre.value("use_regex", true)) cuts.emplace_back(kGpt2Cut);
  } else {
    known = false;
  }
}

std::string pre_name(const Json& rest, const std::string& where) {
  std::vector<std::string> cuts;
  bool known = true;
  collect_cuts(rest.value("pre_tokenizer", Json()), cuts, known);
  const bool ignores_merges = rest.at("model").value("ignore_merges", false);
  const std::string_view name = known ? gguf_pre_name(cuts, ignores_merges) : std::string_view();
  if (name.empty()) fail("{}: GGUF has no name for this tokenizer's way of cutting words (pre_tokenizer)", where);
  return std::string(name);
}

// A BPE tokenizer.json without byte level: a token's score is the rank of the first merge that makes it.
void score_by_merges(const TokenizerJson& json, VocabTable& table) {
  std::map<std::string, float> scores;
  for (size_t i = 0; i < json.merges.size(); ++i) {
    scores.emplace(json.merges[i].first + json.merges[i].second, -static_cast<float>(i));
  }
  const auto last = -static_cast<float>(json.merges.size());
  for (const std::string& token : table.tokens) {
    const auto it = scores.find(token);
    table.scores.push_back(it == scores.end() ? last : it->second);
  }
}

VocabTable from_tokenizer_json(const std::string& path) {
  const TokenizerJson json = read_tokenizer_json(read_text_file(path), path);
  const Json& rest = *json.rest;
  const std::string type = rest.at("model").value("type", "");
  if (type != "BPE") fail("{}: GGUF states BPE vocabularies, not '{}'", path, printable(type));
  VocabTable table;
  table.byte_level = !rest.at("model").value("byte_fallback", false);
  for (const auto& [text, id] : json.vocab) {
    const bool byte = !table.byte_level && is_byte_token(text);
    set_token(table, id, text, byte ? TokenKind::kByte : TokenKind::kNormal);
  }
  for (const Json& added : rest.value("added_tokens", Json::array())) {
    const bool special = added.value("special", false);
    set_token(table, added.at("id").get<int64_t>(), added.at("content").get<std::string>(),
              special ? TokenKind::kControl : TokenKind::kUserDefined);
  }
  if (table.byte_level) {
    table.pre = pre_name(rest, path);
    for (const auto& [left, right] : json.merges) table.merges.push_back(left + " " + right);
  } else {
    score_by_merges(json, table);
    const Json unknown = rest.at("model").value("unk_token", Json());
    for (size_t i = 0; i < table.tokens.size() && unknown.is_string(); ++i) {
      if (table.tokens[i] != unknown.get<std::string>()) continue;
      table.unknown = static_cast<int32_t>(i);
      table.kinds[i] = TokenKind::kUnknown;
    }
    table.adds_space_prefix = rest.dump().find("\"Prepend\"") != std::string::npos ||
                              rest.dump().find("\"prepend_scheme\":\"first\"") != std::string::npos;
  }
  return table;
}

VocabTable from_sentencepiece(const std::string& path) {
  constexpr int32_t kBpeModel = 2;
  const std::string bytes = read_text_file(path);
  VocabTable table;
  int32_t model_type = 1;
  for (ProtobufReader in(bytes, path); in.next();) {
    if (in.field() == 1) {
      std::string text;
      float score = 0;
      int32_t kind = 1;
      for (ProtobufReader piece(in.bytes(), path); piece.next();) {
        if (piece.field() == 1) text = piece.bytes();
        if (piece.field() == 2) score = piece.float32();
        if (piece.field() == 3) kind = piece.int32();
      }
      if (static_cast<TokenKind>(kind) == TokenKind::kUnknown) table.unknown = static_cast<int32_t>(table.tokens.size());
      set_token(table, static_cast<int64_t>(table.tokens.size()), text, static_cast<TokenKind>(kind));
      table.scores.push_back(score);
    } else if (in.field() == 2) {
      for (ProtobufReader spec(in.bytes(), path); spec.next();) {
        if (spec.field() == 3) model_type = spec.int32();
      }
    } else if (in.field() == 3) {
      for (ProtobufReader spec(in.bytes(), path); spec.next();) {
        if (spec.field() == 3) table.adds_space_prefix = spec.boolean();
      }
    }
  }
  if (model_type != kBpeModel) fail("{}: GGUF states SentencePiece BPE vocabularies, and this one is of another kind", path);
  return table;
}

// llama2.c: int32 longest; then float score, int32 length, bytes. load_tokenizer() has checked the file before this reads it.
VocabTable from_llama2c(const std::string& path, int64_t vocab) {
  const std::string bytes = read_text_file(path);
  VocabTable table;
  for (size_t at = 4; at + 8 <= bytes.size() && (vocab < 0 || static_cast<int64_t>(table.tokens.size()) < vocab);) {
    float score = 0;
    uint32_t length = 0;
    std::memcpy(&score, bytes.data() + at, 4);
    std::memcpy(&length, bytes.data() + at + 4, 4);
    std::string text = bytes.substr(at + 8, length);
    at += 8 + size_t{length};
    const size_t id = table.tokens.size();
    for (size_t space = text.find(' '); space != std::string::npos; space = text.find(' ', space)) text.replace(space, 1, "\u2581");
    // Its first 259 tokens are SentencePiece's: unknown, BOS, EOS and the bytes; the file has them under printed names.
    TokenKind kind = is_byte_token(text) ? TokenKind::kByte : TokenKind::kNormal;
    if (id == 0) kind = TokenKind::kUnknown;
    if (id == 1 || id == 2) kind = TokenKind::kControl;
    static constexpr const char* kFirst[] = {"<unk>", "<s>", "</s>"};
    set_token(table, static_cast<int64_t>(id), id < 3 ? kFirst[id] : text, kind);
    table.scores.push_back(score);
  }
  table.unknown = 0;
  return table;
}

VocabTable from_gguf(const std::string& path) {
  const auto file = GgufFile::open(path);
  VocabTable table;
  table.byte_level = file->string("tokenizer.ggml.model", "") != "llama";
  table.pre = file->string("tokenizer.ggml.pre", "default");
  table.tokens = std::get<std::vector<std::string>>(file->array("tokenizer.ggml.tokens")->values);
  table.kinds.assign(table.tokens.size(), TokenKind::kNormal);
  if (const GgufArray* kinds = file->array("tokenizer.ggml.token_type")) {
    const auto& values = std::get<std::vector<int64_t>>(kinds->values);
    for (size_t i = 0; i < values.size(); ++i) table.kinds[i] = static_cast<TokenKind>(values[i]);
  }
  if (const GgufArray* scores = file->array("tokenizer.ggml.scores")) {
    for (double score : std::get<std::vector<double>>(scores->values)) table.scores.push_back(static_cast<float>(score));
  }
  if (const GgufArray* merges = file->array("tokenizer.ggml.merges")) {
    table.merges = std::get<std::vector<std::string>>(merges->values);
  }
  table.unknown = static_cast<int32_t>(file->integer("tokenizer.ggml.unknown_token_id", -1));
  table.adds_space_prefix = file->boolean("tokenizer.ggml.add_space_prefix", true);
  return table;
}

VocabTable read_lists(const std::string& source, int64_t vocab) {
  const fs::path path(source);
  if (fs::is_directory(path)) {
    for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
      if (fs::exists(path / name)) return read_lists((path / name).string(), vocab);
    }
    fail("{}: expected tokenizer.json or tokenizer.model to export the vocabulary from", source);
  }
  if (path.extension() == ".json") return from_tokenizer_json(source);
  if (path.extension() == ".gguf") return from_gguf(source);
  if (path.extension() == ".bin") return from_llama2c(source, vocab);
  if (read_text_file(source).find('\0') == std::string::npos) {
    fail("{}: a tiktoken file has no merges to export: give the model's tokenizer.json", source);
  }
  return from_sentencepiece(source);
}

}  // namespace

VocabTable read_vocab_table(const std::string& source, int64_t vocab) {
  const auto tokenizer = load_tokenizer(source, vocab);  // first, since it checks everything that is read again below
  VocabTable table = read_lists(source, vocab);
  table.bos = tokenizer->bos();
  table.eos = tokenizer->eos();
  table.adds_bos = tokenizer->adds_bos();
  table.adds_eos = tokenizer->adds_eos();
  table.chat_template = tokenizer->chat_template();
  for (size_t i = 0; i < table.tokens.size(); ++i) {
    if (table.tokens[i].empty()) set_token(table, static_cast<int64_t>(i), fmt::format("[UNUSED{}]", i), TokenKind::kUnused);
  }
  return table;
}

}  // namespace fathom
