#include "text/pre_tokenizer.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "text/byte_level.h"
#include "text/growth.h"
#include "text/normalizer.h"
#include "text/unicode.h"

namespace fathom {
namespace {

constexpr const char* kPreTokenizer = "the pre-tokenizer";

// GPT-2's own pattern, as its encoder has it.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Joins or drops matches and the stretches between them; `spans` cover one piece in order. Writes the pieces
// over them.
void keep_pieces(std::vector<TextSpan>& spans, SplitBehavior behavior) {
  if (behavior == SplitBehavior::kRemoved) {
    std::erase_if(spans, [](const TextSpan& span) { return span.match; });
    return;
  }
  if (behavior == SplitBehavior::kIsolated) return;
  const bool backwards = behavior == SplitBehavior::kMergedWithNext;
  if (backwards) std::reverse(spans.begin(), spans.end());
  std::vector<TextSpan> kept;
  bool previous = false;
  for (const TextSpan& span : spans) {
    const bool join =
        behavior == SplitBehavior::kContiguous ? span.match == previous : span.match && !previous;
    previous = span.match;
    if (!join || kept.empty()) {
      kept.push_back(span);
    } else if (backwards) {
      kept.back().begin = span.begin;
    } else {
      kept.back().end = span.end;
    }
  }
  if (backwards) std::reverse(kept.begin(), kept.end());
  spans.swap(kept);
}

// Cuts every piece by cut(piece's text, spans of it).
template <class Cut>
void cut_pieces(Pieces& pieces, Cut cut) {
  std::vector<TextSpan> all, parts;
  all.reserve(pieces.text.size() / 4 + 1);
  for (const TextSpan& piece : pieces.spans) {
    parts.clear();
    cut(pieces.text.substr(piece.begin, piece.end - piece.begin), parts);
    for (const TextSpan& part : parts) {
      if (part.end > part.begin) all.push_back({piece.begin + part.begin, piece.begin + part.end, false});
    }
  }
  pieces.spans.swap(all);
}

// Gives every piece a new text, change(piece's text, index, buffer): the piece's new text is appended to the
// buffer.
template <class Change>
void change_pieces(Pieces& pieces, Change change) {
  std::string buffer;
  buffer.reserve(pieces.text.size() + pieces.text.size() / 4);
  for (TextSpan& piece : pieces.spans) {
    const auto begin = static_cast<uint32_t>(buffer.size());
    change(pieces.text.substr(piece.begin, piece.end - piece.begin), piece.begin, buffer);
    check_growth(buffer.size(), pieces.most, kPreTokenizer);
    piece = {begin, static_cast<uint32_t>(buffer.size()), false};
  }
  pieces.buffer = std::move(buffer);
  pieces.text = pieces.buffer;
}

void cut_by_class(std::string_view text, PreTokenizer::Predicate matches, std::vector<TextSpan>& spans) {
  uint32_t start = 0;  // of the stretch without a match
  for (uint32_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    const uint32_t end = at + c.size;
    if (matches(c.value)) {
      if (at > start) spans.push_back({start, at, false});
      spans.push_back({at, end, true});
      start = end;
    }
    at = end;
  }
  if (start < text.size()) spans.push_back({start, static_cast<uint32_t>(text.size()), false});
}

void cut_digit_groups(std::string_view text, std::vector<TextSpan>& spans) {
  uint32_t start = 0;
  std::vector<uint32_t> digits;  // where the digits of a run begin
  const auto end_run = [&](uint32_t end) {
    if (digits.empty()) return;
    if (digits[0] > start) spans.push_back({start, digits[0], false});
    const size_t lead = digits.size() % 3;
    for (size_t i = 0; i < digits.size();) {
      const size_t next = i == 0 && lead > 0 ? lead : i + 3;
      spans.push_back({digits[i], next < digits.size() ? digits[next] : end, true});
      i = next;
    }
    start = end;
    digits.clear();
  };
  for (uint32_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    if (is_numeric(c.value)) {
      digits.push_back(at);
    } else {
      end_run(at);
    }
    at += c.size;
  }
  end_run(static_cast<uint32_t>(text.size()));
  if (start < text.size()) spans.push_back({start, static_cast<uint32_t>(text.size()), false});
}

}  // namespace

void PreTokenizer::add(std::function<void(Pieces&)> apply) {
  steps_.push_back({std::move(apply)});
  check_steps(steps_.size(), kPreTokenizer);
}

void PreTokenizer::add_split(Regex pattern, SplitBehavior behavior, bool invert) {
  add([regex = std::make_shared<const Regex>(std::move(pattern)), behavior, invert](Pieces& pieces) {
    cut_pieces(pieces, [&](std::string_view text, std::vector<TextSpan>& spans) {
      regex->split(text, spans);
      if (invert) {
        for (TextSpan& span : spans) span.match = !span.match;
      }
      keep_pieces(spans, behavior);
    });
  });
}

void PreTokenizer::add_classes(Predicate matches, SplitBehavior behavior) {
  add([matches, behavior](Pieces& pieces) {
    cut_pieces(pieces, [&](std::string_view text, std::vector<TextSpan>& spans) {
      cut_by_class(text, matches, spans);
      keep_pieces(spans, behavior);
    });
  });
}

void PreTokenizer::add_digit_groups() {
  add([](Pieces& pieces) { cut_pieces(pieces, cut_digit_groups); });
}

void PreTokenizer::add_byte_level(bool add_prefix_space, bool use_regex) {
  if (add_prefix_space) {
    add([](Pieces& pieces) {
      change_pieces(pieces, [](std::string_view text, uint32_t, std::string& buffer) {
        if (!text.starts_with(' ')) buffer += ' ';
        buffer += text;
      });
    });
  }
  if (use_regex) add_split(Regex(kGpt2Pattern), SplitBehavior::kIsolated, false);
  add([](Pieces& pieces) {
    const bool stand_ins = std::exchange(pieces.stand_ins, false);
    change_pieces(pieces, [&](std::string_view text, uint32_t, std::string& buffer) {
      buffer += stand_ins ? to_byte_level(without_stand_ins(text)) : to_byte_level(text);
    });
  });
  steps_.back().spells_bytes = true;
  byte_level_ = true;
}

void PreTokenizer::add_metaspace(std::string replacement, Prepend prepend, bool split) {
  add([replacement, prepend](Pieces& pieces) {
    const bool at_start = pieces.at_start;
    change_pieces(pieces, [&](std::string_view text, uint32_t begin, std::string& buffer) {
      const std::string marked = replace_all(text, " ", replacement, pieces.most, kPreTokenizer);
      const bool wanted =
          prepend == Prepend::kAlways || (prepend == Prepend::kFirst && at_start && begin == 0);
      if (wanted && !marked.starts_with(replacement)) buffer += replacement;
      buffer += marked;
    });
  });
  if (split) add_split(Regex::literal(replacement), SplitBehavior::kMergedWithNext, false);
}

void PreTokenizer::run(Pieces& pieces) const {
  pieces.spans.clear();
  pieces.most = most_bytes(pieces.text.size(), kPreTokenizerGrowth);
  if (pieces.text.empty()) return;
  pieces.spans.push_back({0, static_cast<uint32_t>(pieces.text.size()), false});
  // The last spelling of bytes is left out where it is the last step: the model reads bytes.
  const bool spelt_last = !steps_.empty() && steps_.back().spells_bytes;
  const size_t count = steps_.size() - (spelt_last ? 1 : 0);
  for (size_t i = 0; i < count; ++i) steps_[i].apply(pieces);
  if (byte_level_ && !spelt_last) {
    change_pieces(pieces, [](std::string_view text, uint32_t, std::string& buffer) {
      std::string bytes;
      buffer += from_byte_level(text, &bytes) ? bytes : std::string(text);
    });
  }
}

}  // namespace fathom
