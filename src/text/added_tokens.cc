#include "text/added_tokens.h"

#include <algorithm>

#include "base/format.h"
#include "text/unicode.h"

namespace fathom {
namespace {

// The character that ends just before `at` > 0.
char32_t char_before(std::string_view text, size_t at, size_t* begin) {
  *begin = at - 1;
  while (*begin > 0 && at - *begin < 4 && (static_cast<unsigned char>(text[*begin]) & 0xC0) == 0x80) --*begin;
  return decode_utf8(text, *begin).value;
}

bool is_whole_word(std::string_view text, size_t begin, size_t end) {
  size_t unused = 0;
  return (begin == 0 || !is_word_char(char_before(text, begin, &unused))) &&
         (end == text.size() || !is_word_char(decode_utf8(text, end).value));
}

size_t skip_spaces_back(std::string_view text, size_t at, size_t limit) {
  while (at > limit) {
    size_t begin = 0;
    if (!is_white_space(char_before(text, at, &begin))) break;
    at = begin;
  }
  return std::max(at, limit);
}

size_t skip_spaces(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Utf8Char c = decode_utf8(text, at);
    if (!is_white_space(c.value)) break;
    at += c.size;
  }
  return at;
}

// As skip_spaces(), for spaces as SentencePiece's normalizers leave them.
size_t skip_marked_spaces(std::string_view text, size_t at, size_t limit) {
  constexpr std::string_view kMark = "\u2581";
  while (at < limit && (text[at] == ' ' || text.substr(at).starts_with(kMark)))
    at += text[at] == ' ' ? 1 : kMark.size();
  return std::min(at, limit);
}

// The parts of a text, in ascending order: is this place in one of `literal`, and where does its part end?
class Parts {
 public:
  Parts(std::span<const TextRange> literal, size_t size) : literal_(literal), size_(size) {}
  void move_to(size_t at) {
    while (next_ < literal_.size() && literal_[next_].end <= at) ++next_;
    inside_ = next_ < literal_.size() && literal_[next_].begin <= at;
  }
  bool literal() const { return inside_; }
  size_t end() const {
    if (next_ == literal_.size()) return size_;
    return inside_ ? literal_[next_].end : literal_[next_].begin;
  }

 private:
  std::span<const TextRange> literal_;
  size_t size_, next_ = 0;
  bool inside_ = false;
};

}  // namespace

void AddedTokens::add(AddedToken token) {
  constexpr size_t kLongest = 4096;  // a text is searched in steps of the longest token at most
  if (token.id < 0) {
    fail("tokenizer: added token '{}' has the id {}", printable(token.content), token.id);
  }
  require(!token.content.empty(), "tokenizer: added token {} has no text", token.id);
  require(token.content.size() <= kLongest, "tokenizer: added token {} has {} bytes, more than {}", token.id,
          token.content.size(), kLongest);
  const auto [by_content, new_content] = by_content_.try_emplace(token.content, token.id);
  if (!(by_content->second == token.id)) {
    fail("tokenizer: added token '{}' has two ids, {} and {}", printable(token.content), by_content->second,
         token.id);
  }
  const auto [by_id, new_id] = by_id_.try_emplace(token.id, token);
  if (!(by_id->second.content == token.content)) {
    fail("tokenizer: two added tokens have the id {}: '{}' and '{}'", token.id,
         printable(by_id->second.content), printable(token.content));
  }
}

void AddedTokens::prepare(const Normalizer& normalizer) {
  for (const auto& [id, token] : by_id_) {
    tries_[token.normalized].add(token.normalized ? normalizer.apply(token.content) : token.content, id);
  }
}

void AddedTokens::split(std::string_view text, bool normalized, const EncodeOptions& options,
                        std::vector<Segment>& out) const {
  const ByteTrie& trie = tries_[normalized];
  const auto is_mark = [&](int32_t id) {
    return by_id_.at(id).special ||
           std::find(options.marks.begin(), options.marks.end(), id) != options.marks.end();
  };
  Parts parts(options.literal, text.size());
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    int32_t id = -1;
    size_t length = trie.starts(static_cast<uint8_t>(text[at])) ? trie.longest(text, at, &id) : 0;
    parts.move_to(at);
    Parts visible = parts;  // a token may begin with a space that a content ends with
    visible.move_to(skip_marked_spaces(text, at, at + length));
    // A mark stands in one part. What a content's end makes of the mark behind it must not hide that mark.
    if (length > 0 && at + length > visible.end() && is_mark(id)) {
      length = trie.longest(text.substr(0, parts.end()), at, &id);
      visible = parts;
    }
    if (length == 0) {
      ++at;
      continue;
    }
    const AddedToken& token = by_id_.at(id);
    size_t begin = at, end = at + length;
    at = end;  // matches do not overlap, whether or not this one counts
    if (token.special && !options.parse_special) continue;
    if (visible.literal() && is_mark(id)) continue;
    if (token.single_word && !is_whole_word(text, begin, end)) continue;
    if (token.lstrip) begin = skip_spaces_back(text, begin, done);
    if (token.rstrip) end = skip_spaces(text, end);
    if (begin > done) out.push_back({-1, text.substr(done, begin - done)});
    out.push_back({id, {}});
    done = end;
  }
  if (done < text.size()) out.push_back({-1, text.substr(done)});
}

const AddedToken* AddedTokens::find(int32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &found->second;
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  const auto found = by_content_.find(content);
  return found == by_content_.end() ? nullptr : find(found->second);
}

}  // namespace fathom
