// Reads tokenizer.json as a stream: the vocabulary and the merges, which are most of it, go straight into
// lists; the rest is small and becomes a tree.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fathom {

struct TokenizerJson {
  TokenizerJson();
  ~TokenizerJson();
  TokenizerJson(TokenizerJson&&) noexcept;

  std::unique_ptr<nlohmann::json> rest;                     // everything but the three below
  std::vector<std::pair<std::string, int64_t>> vocab;       // model.vocab as an object
  std::vector<std::pair<std::string, double>> pieces;       // model.vocab as a list of [text, score]
  std::vector<std::pair<std::string, std::string>> merges;  // model.merges, "a b" or ["a", "b"]
  bool has_merges = false;
};

// `where` starts each message. UserError on text that is no JSON, nested more than 64 deep, with a key twice,
// or with a vocabulary or merges of another shape.
TokenizerJson read_tokenizer_json(std::string_view text, const std::string& where);

// Any other JSON, with the same limits.
std::unique_ptr<nlohmann::json> read_json_tree(std::string_view text, const std::string& where);

// An object of text to id, as vocab.json is.
std::vector<std::pair<std::string, int64_t>> read_vocab_json(std::string_view text, const std::string& where);

}  // namespace fathom
