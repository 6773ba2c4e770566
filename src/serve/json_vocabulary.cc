#include "serve/json_vocabulary.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>

#include "base/format.h"
#include "text/unicode.h"

namespace fathom {
namespace {

std::vector<std::string> pieces_of(const Tokenizer& tokenizer, const std::vector<int32_t>& end_ids) {
  std::vector<std::string> pieces(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const bool ends = std::find(end_ids.begin(), end_ids.end(), id) != end_ids.end();
    if (!ends && !tokenizer.is_special(id)) pieces[static_cast<size_t>(id)] = tokenizer.piece(id);
  }
  return pieces;
}

bool is_marked(const std::string& piece) {
  return piece.find_first_of("\"\\") != std::string::npos;
}

using Tokens = std::vector<std::pair<std::string, int32_t>>;

template <class Wanted>
Tokens tokens_of(const std::vector<std::string>& pieces, Wanted&& wanted) {
  Tokens tokens;
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (!pieces[id].empty() && wanted(pieces[id])) tokens.emplace_back(pieces[id], static_cast<int32_t>(id));
  }
  return tokens;
}

void check_ascii(const std::vector<std::string>& pieces) {
  std::array<bool, 256> alone{};
  for (const std::string& piece : pieces) {
    if (piece.size() == 1) alone[static_cast<uint8_t>(piece[0])] = true;
  }
  for (size_t byte = 0x20; byte < 0x7F; ++byte) {
    if (!alone[byte])
      fail(
          "JSON answers: expected a vocabulary with a token for each ASCII character, but none is '{}' alone",
          static_cast<char>(byte));
  }
}

// Characters that begin in `piece`, or 0 where a string does not show them as they are.
size_t plain_characters(JsonMachine& string, const std::string& piece) {
  if (is_marked(piece)) return 0;
  size_t characters = 0, read = 0;
  while (read < piece.size() && string.step(static_cast<uint8_t>(piece[read]))) {
    characters += (static_cast<uint8_t>(piece[read]) & 0xC0) != 0x80;
    ++read;
  }
  string.back(read);
  return read == piece.size() ? characters : 0;
}

std::shared_ptr<const JsonGrammar> any_string() {
  CompileBudget budget;
  auto grammar = std::make_shared<JsonGrammar>();
  grammar->root = grammar->add_value();
  grammar->values[0].parts.push_back(grammar->add_part({.kind = JsonGrammar::Kind::kString}));
  grammar->finish(budget);
  return grammar;
}

std::vector<std::pair<size_t, TokenBits>> plain_tokens(const std::vector<std::string>& pieces) {
  JsonMachine string(any_string());
  string.step('"');
  std::map<size_t, std::vector<int32_t>> by_characters;
  for (size_t id = 0; id < pieces.size(); ++id)
    by_characters[plain_characters(string, pieces[id])].push_back(static_cast<int32_t>(id));
  by_characters.erase(0);
  std::vector<std::pair<size_t, TokenBits>> plain;
  TokenBits bits(pieces.size());
  for (const auto& [characters, ids] : by_characters) {
    for (const int32_t id : ids) bits.set(id);
    plain.emplace_back(characters, bits);
  }
  return plain;
}

}  // namespace

JsonVocabulary::JsonVocabulary(const Tokenizer& tokenizer, std::vector<int32_t> end_ids)
    : pieces_(pieces_of(tokenizer, end_ids)),
      end_ids_(std::move(end_ids)),
      all_(tokens_of(pieces_, [](const std::string&) { return true; })),
      marked_(tokens_of(pieces_, is_marked)) {
  check_ascii(pieces_);
  plain_ = plain_tokens(pieces_);
}

const std::string& JsonVocabulary::piece(int32_t id) const {
  static const std::string kNothing;
  return id >= 0 && static_cast<size_t>(id) < pieces_.size() ? pieces_[static_cast<size_t>(id)] : kNothing;
}

bool JsonVocabulary::ends(int32_t id) const {
  return std::find(end_ids_.begin(), end_ids_.end(), id) != end_ids_.end();
}

// As if four ways were followed through all tokens. The rest is for values that have many alternatives.
uint64_t JsonVocabulary::most_tries() const {
  return 4 * uint64_t{trie_nodes()} + 16'384;
}

// Inside a string nearly every token may come: only those with a quote or a backslash need a look.
TokenBits JsonVocabulary::allowed(JsonMachine& machine) const {
  const uint32_t room = machine.plain_room();
  TokenBits bits(pieces_.size());
  if (room > 0) {
    const auto longer = std::upper_bound(plain_.begin(), plain_.end(), size_t{room},
                                         [](size_t most, const auto& entry) { return most < entry.first; });
    bits = std::prev(longer)->second;  // characters of ASCII are tokens: the first entry is of one character
  }
  bool any = room > 0;
  const auto found = [&](int32_t id) {
    bits.set(id);
    any = true;
  };
  const TokenTrie& looked_at = room > 0 ? marked_ : all_;
  machine.bound_tries(machine.tries() + most_tries());
  looked_at.walk(machine, found);
  machine.bound_tries(JsonMachine::kNoBound);
  // A vocabulary without a token for each byte may have none for what the first way alone goes on with.
  if (!any) looked_at.walk(machine, found);
  if (machine.complete()) {
    for (const int32_t id : end_ids_) {
      if (id >= 0 && static_cast<size_t>(id) < pieces_.size()) bits.set(id);
    }
  }
  return bits;
}

}  // namespace fathom
