#include "text/vocab_table.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "base/format.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "io/gguf.h"
#include "text/gguf_pre_types.h"
#include "text/protobuf_reader.h"
#include "text/tiktoken.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

bool is_byte_token(const std::string& text) {
  return text.size() == 6 && text.starts_with("<0x") && text.ends_with(">");
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

void set_token(VocabTable& table, int64_t id, const std::string& text, TokenKind kind) {
  const auto at = static_cast<size_t>(id);
  if (table.tokens.size() <= at) {
    table.tokens.resize(at + 1);
    table.kinds.resize(at + 1, TokenKind::kUnused);
  }
  table.tokens[at] = text;
  table.kinds[at] = kind;
}

// How a pre-tokenizer cuts words, as far as a GGUF name could say it.
struct Cuts {
  std::vector<std::string> patterns;
  bool byte_level = false;
  bool known = true;  // false: something else is there
};

void collect_cuts(const Json& pre, Cuts& cuts) {
  const std::string type = pre.is_object() ? pre.value("type", "") : "";
  if (type == "Sequence") {
    for (const Json& part : pre.at("pretokenizers")) collect_cuts(part, cuts);
  } else if (type == "Split" && pre.at("pattern").contains("Regex")) {
    // "Removed" and "invert" keep the matches and drop what is between them; the patterns that have names
    // leave nothing between.
    const std::string behavior = pre.value("behavior", "");
    const bool invert = pre.value("invert", false);
    cuts.known = cuts.known && (invert ? behavior == "Removed" : behavior == "Isolated");
    cuts.patterns.push_back(pre.at("pattern").at("Regex").get<std::string>());
  } else if (type == "Digits") {
    cuts.patterns.emplace_back(pre.value("individual_digits", false) ? "\\p{N}" : "\\p{N}+");
  } else if (type == "ByteLevel") {
    cuts.byte_level = true;
    cuts.known = cuts.known && !pre.value("add_prefix_space", true);
    if (pre.value("use_regex", true)) cuts.patterns.emplace_back(kGpt2Cut);
  } else {
    cuts.known = false;
  }
}

// Several names mean the same cuts: the one that llama.cpp's own files of these models have.
std::string usual_name(std::string_view name) {
  if (name == "starcoder") return "smollm";
  if (name == "llama3") return "llama-bpe";
  return std::string(name);
}

std::string pre_name(const Json& rest, const Cuts& cuts, const std::string& where) {
  const bool ignores_merges = rest.at("model").value("ignore_merges", false);
  const std::string_view name =
      cuts.known ? gguf_pre_name(cuts.patterns, ignores_merges) : std::string_view();
  if (name.empty())
    fail("{}: GGUF has no name for this tokenizer's way of cutting words (pre_tokenizer)", where);
  const Json normalizer = rest.value("normalizer", Json());
  if (normalizer.is_object() && normalizer.value("type", "") == "NFC") {
    log_warn(where + ": GGUF cannot say that text is brought into the normal form NFC first");
  } else if (!normalizer.is_null()) {
    fail("{}: GGUF cannot say how this tokenizer changes text first (normalizer)", where);
  }
  return usual_name(name);
}

// A BPE tokenizer.json without byte level as a list of scores: a token's is the rank of the first merge that
// makes it. That says the same where any two neighbours that make a token may be merged, as SentencePiece
// does, and where no other token's merges come between a token's own.
void score_by_merges(const TokenizerJson& json, const std::string& where, VocabTable& table) {
  const auto cannot = [&](const std::string& token, const char* why) {
    fail("{}: GGUF states merges as one score for each token, and those of '{}' {}", where, printable(token),
         why);
  };
  std::unordered_map<std::string, std::pair<size_t, size_t>> ranks;  // token -> first rank, how many
  std::string last;
  for (size_t i = 0; i < json.merges.size(); ++i) {
    const std::string token = json.merges[i].first + json.merges[i].second;
    const auto [it, fresh] = ranks.try_emplace(token, i, 0);
    if (!fresh && token != last) cannot(token, "stand apart");
    ++it->second.second;
    last = token;
  }
  std::unordered_set<std::string_view> tokens(table.tokens.begin(), table.tokens.end());
  for (size_t i = 0; i < table.tokens.size(); ++i) {
    const std::string_view token = table.tokens[i];
    const auto it = ranks.find(table.tokens[i]);
    table.scores.push_back(-static_cast<float>(it == ranks.end() ? json.merges.size() : it->second.first));
    if (table.kinds[i] != TokenKind::kNormal) continue;
    size_t ways = 0;
    for (size_t cut = 1; cut < token.size(); ++cut)
      ways += tokens.count(token.substr(0, cut)) && tokens.count(token.substr(cut));
    if (ways != (it == ranks.end() ? 0 : it->second.second)) cannot(table.tokens[i], "are not all there");
  }
}

// '▁' before a text: by the normaliser, or by Metaspace ("first": not after special tokens too, which GGUF
// cannot say).
bool prepends_space(const Json& rest, const std::string& where) {
  const Json pre = rest.value("pre_tokenizer", Json()), normalizer = rest.value("normalizer", Json());
  if (pre.is_object() && pre.value("type", "") == "Metaspace") {
    if (pre.value("split", true))
      fail("{}: GGUF cannot say that words are cut before they are merged (Metaspace)", where);
    return pre.value("prepend_scheme", "always") != "never";
  }
  return normalizer.dump().find("\"Prepend\"") != std::string::npos;
}

VocabTable from_sentencepiece(const std::string& path) {
  constexpr int32_t kBpeModel = 2;
  const std::string bytes = read_text_file(path);
  VocabTable table;
  table.prefix_after_special = false;
  int32_t model_type = 1;
  bool changes_text = false, removes_spaces = true;  // the format's defaults
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
      if (static_cast<TokenKind>(kind) == TokenKind::kUnknown)
        table.unknown = static_cast<int32_t>(table.tokens.size());
      // Found in the text as it is written, before spaces become '▁'.
      if (static_cast<TokenKind>(kind) == TokenKind::kUserDefined) replace_all(text, "\u2581", " ");
      set_token(table, static_cast<int64_t>(table.tokens.size()), text, static_cast<TokenKind>(kind));
      table.scores.push_back(score);
    } else if (in.field() == 2) {
      for (ProtobufReader spec(in.bytes(), path); spec.next();) {
        if (spec.field() == 3) model_type = spec.int32();
      }
    } else if (in.field() == 3) {
      for (ProtobufReader spec(in.bytes(), path); spec.next();) {
        if (spec.field() == 2) changes_text = changes_text || !spec.bytes().empty();
        if (spec.field() == 3) table.adds_space_prefix = spec.boolean();
        if (spec.field() == 4) removes_spaces = spec.boolean();
      }
    }
  }
  if (changes_text || removes_spaces) {
    fail("{}: this tokenizer {} first, which GGUF and a plain tokenizer.json cannot say", path,
         changes_text ? "normalises text" : "removes repeated spaces");
  }
  if (model_type != kBpeModel)
    fail("{}: GGUF states SentencePiece BPE vocabularies, and this one is of another kind", path);
  return table;
}

// The scores of the SentencePiece model beside a tokenizer.json, where it has the same tokens.
bool take_scores_beside(const std::string& path, VocabTable& table) {
  const fs::path model = fs::path(path).parent_path() / "tokenizer.model";
  if (!fs::exists(model) || is_tiktoken(read_text_file(model.string()))) return false;
  const VocabTable there = from_sentencepiece(model.string());
  if (there.tokens.size() > table.tokens.size()) return false;
  if (!std::equal(there.tokens.begin(), there.tokens.end(), table.tokens.begin())) return false;
  table.scores = there.scores;
  return true;
}

VocabTable from_tokenizer_json(const std::string& path) {
  const TokenizerJson json = read_tokenizer_json(read_text_file(path), path);
  const Json& rest = *json.rest;
  const Json& model = rest.at("model");
  const std::string type = model.value("type", "BPE");
  if (type != "BPE") fail("{}: GGUF states BPE vocabularies, not '{}'", path, printable(type));
  VocabTable table;
  Cuts cuts;
  collect_cuts(rest.value("pre_tokenizer", Json()), cuts);
  table.byte_level = cuts.byte_level;
  if (!cuts.byte_level && !model.value("byte_fallback", false)) {
    fail("{}: GGUF states BPE of bytes or with byte fallback, and this tokenizer has neither", path);
  }
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
    table.pre = pre_name(rest, cuts, path);
    for (const auto& [left, right] : json.merges) table.merges.push_back(left + " " + right);
    return table;
  }
  const std::string unknown =
      model.value("unk_token", Json()).is_string() ? model.at("unk_token").get<std::string>() : "";
  for (size_t i = 0; i < table.tokens.size() && !unknown.empty(); ++i) {
    if (table.tokens[i] != unknown) continue;
    table.unknown = static_cast<int32_t>(i);
    table.kinds[i] = TokenKind::kUnknown;
  }
  if (!take_scores_beside(path, table)) score_by_merges(json, path, table);
  table.adds_space_prefix = prepends_space(rest, path);
  return table;
}

// llama2.c: int32 longest; then float score, int32 length, bytes. load_tokenizer() has checked the file
// before this reads it.
VocabTable from_llama2c(const std::string& path, int64_t vocab) {
  const std::string bytes = read_text_file(path);
  VocabTable table;
  for (size_t at = 4;
       at + 8 <= bytes.size() && (vocab < 0 || static_cast<int64_t>(table.tokens.size()) < vocab);) {
    float score = 0;
    uint32_t length = 0;
    std::memcpy(&score, bytes.data() + at, 4);
    std::memcpy(&length, bytes.data() + at + 4, 4);
    std::string text = bytes.substr(at + 8, length);
    at += 8 + size_t{length};
    const size_t id = table.tokens.size();
    replace_all(text, " ", "\u2581");
    // Its first 259 tokens are SentencePiece's: unknown, BOS, EOS and the bytes; the file has them under
    // printed names.
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
  const std::string model = file->string("tokenizer.ggml.model", "");
  if (model != "llama" && model != "gpt2")
    fail("{}: the vocabulary '{}' cannot be stated in tokenizer.json", path, printable(model));
  table.byte_level = model == "gpt2";
  table.pre = file->string("tokenizer.ggml.pre", "default");
  table.tokens = std::get<std::vector<std::string>>(file->array("tokenizer.ggml.tokens")->values);
  table.kinds.assign(table.tokens.size(), TokenKind::kNormal);
  if (const GgufArray* kinds = file->array("tokenizer.ggml.token_type")) {
    const auto& values = std::get<std::vector<int64_t>>(kinds->values);
    for (size_t i = 0; i < values.size(); ++i) table.kinds[i] = static_cast<TokenKind>(values[i]);
  }
  if (const GgufArray* scores = file->array("tokenizer.ggml.scores")) {
    for (double score : std::get<std::vector<double>>(scores->values))
      table.scores.push_back(static_cast<float>(score));
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
  if (is_tiktoken(read_text_file(source))) {
    fail("{}: a tiktoken file has no merges to export: give the model's tokenizer.json", source);
  }
  return from_sentencepiece(source);
}

// Tokens that the vocabulary's own file lacks (tokenizer_config.json may add some), and names for ids that
// nothing has.
void complete(const Tokenizer& tokenizer, VocabTable& table) {
  const auto known = static_cast<int32_t>(table.tokens.size());
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const bool there = id < known && !table.tokens[static_cast<size_t>(id)].empty();
    if (there && tokenizer.is_special(id) && table.kinds[static_cast<size_t>(id)] == TokenKind::kNormal) {
      table.kinds[static_cast<size_t>(id)] = TokenKind::kControl;
    }
    const std::string text = there ? "" : tokenizer.token(id);
    if (!text.empty())
      set_token(table, id, text, tokenizer.is_special(id) ? TokenKind::kControl : TokenKind::kUserDefined);
  }
  for (size_t i = 0; i < table.tokens.size(); ++i) {
    if (table.tokens[i].empty())
      set_token(table, static_cast<int64_t>(i), fmt::format("[UNUSED{}]", i), TokenKind::kUnused);
  }
  if (!table.byte_level) table.scores.resize(table.tokens.size(), 0.0f);
}

}  // namespace

VocabTable read_vocab_table(const std::string& source, int64_t vocab) {
  const auto tokenizer =
      load_tokenizer(source, vocab);  // first, since it checks everything that is read again below
  VocabTable table = read_lists(source, vocab);
  table.bos = tokenizer->bos();
  table.eos = tokenizer->eos();
  table.adds_bos = tokenizer->adds_bos();
  table.adds_eos = tokenizer->adds_eos();
  table.chat_template = tokenizer->chat_template();
  complete(*tokenizer, table);
  return table;
}

}  // namespace fathom
