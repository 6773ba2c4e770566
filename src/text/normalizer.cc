#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <memory>

#include "base/format.h"
#include "text/growth.h"
#include "text/unicode.h"

namespace fathom {
namespace {

constexpr const char* kNormalizer = "the normalizer";

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

// Decomposes one character; utf8proc's own sort of a whole text is quadratic, so only this and its
// composition are used.
void decompose(char32_t value, bool compatible, std::vector<utf8proc_int32_t>& out) {
  utf8proc_int32_t parts[32];
  int last_boundary = 0;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE |
                                                      (compatible ? UTF8PROC_COMPAT : 0));
  const auto count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(value), parts, 32, options, &last_boundary);
  if (count <= 0 || count > 32) {
    out.push_back(static_cast<utf8proc_int32_t>(value));
  } else {
    out.insert(out.end(), parts, parts + count);
  }
}

// Marks that follow one another are ordered by their combining class, equal ones staying in order: a counting
// sort, as a text may be nothing but marks.
void order_marks(std::vector<utf8proc_int32_t>& text) {
  const auto combining_class = [](utf8proc_int32_t c) {
    return static_cast<uint8_t>(utf8proc_get_property(c)->combining_class);  // 0 … 254
  };
  std::vector<utf8proc_int32_t> sorted;
  for (size_t at = 0; at < text.size();) {
    if (text[at] < 0x300 || combining_class(text[at]) == 0) {  // the first mark is U+0300
      ++at;
      continue;
    }
    std::array<size_t, 257> starts{};  // starts[c + 1] counts class c, then starts[c] is where it begins
    size_t end = at;
    for (uint8_t c; end < text.size() && (c = combining_class(text[end])) != 0; ++end) ++starts[c + 1];
    if (end - at > 1) {
      for (size_t c = 1; c < starts.size(); ++c) starts[c] += starts[c - 1];
      sorted.resize(end - at);
      for (size_t i = at; i < end; ++i) sorted[starts[combining_class(text[i])]++] = text[i];
      std::copy(sorted.begin(), sorted.end(), text.begin() + static_cast<std::ptrdiff_t>(at));
    }
    at = end;
  }
}

}  // namespace

std::string to_normal_form(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  std::vector<utf8proc_int32_t> decomposed;
  decomposed.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    at += c.size;
    if (c.value < 0x80) {
      decomposed.push_back(static_cast<utf8proc_int32_t>(c.value));
    } else {
      decompose(c.value, compatible, decomposed);
    }
  }
  order_marks(decomposed);
  auto count = static_cast<utf8proc_ssize_t>(decomposed.size());
  if (form == NormalForm::kNfc || form == NormalForm::kNfkc) {
    count = utf8proc_normalize_utf32(decomposed.data(), count,
                                     static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    require(count >= 0, "normalizer: utf8proc: {}", utf8proc_errmsg(count));
  }
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < count; ++i) append_utf8(out, static_cast<char32_t>(decomposed[i]));
  return out;
}

std::string replace_all(std::string_view text, std::string_view what, std::string_view with, size_t most,
                        const char* part) {
  std::string out;
  out.reserve(text.size());
  size_t at = 0;
  for (size_t found; !what.empty() && (found = text.find(what, at)) != std::string_view::npos;
       at = found + what.size()) {
    check_growth(out.size() + (found - at) + with.size(), most, part);
    out += text.substr(at, found - at);
    out += with;
  }
  return out += text.substr(at);
}

void Normalizer::add(Step step) {
  steps_.push_back(std::move(step));
  check_steps(steps_.size(), kNormalizer);
}

std::string Normalizer::apply(const std::string& text) const {
  const size_t most = most_bytes(text.size(), kNormalizerGrowth);
  std::string out = text;
  for (const Step& step : steps_) {
    out = step(out, most);
    check_growth(out.size(), most, kNormalizer);
  }
  return out;
}

void Normalizer::add_normal_form(NormalForm form) {
  add([form](const std::string& text, size_t) { return to_normal_form(text, form); });
}

void Normalizer::add_prepend(const std::string& prefix) {
  add([prefix](const std::string& text, size_t most) {
    check_growth(prefix.size() + text.size(), most, kNormalizer);
    return text.empty() ? text : prefix + text;
  });
}

void Normalizer::add_replace(const std::string& what, const std::string& with) {
  add([what, with](const std::string& text, size_t most) {
    return replace_all(text, what, with, most, kNormalizer);
  });
}

void Normalizer::add_replace(Regex what, const std::string& with) {
  add([regex = std::make_shared<const Regex>(std::move(what)), with](const std::string& text, size_t most) {
    std::vector<TextSpan> spans;
    regex->split(text, spans);
    std::string out;
    out.reserve(text.size());
    for (const TextSpan& span : spans) {
      if (span.match) {
        check_growth(out.size() + with.size(), most, kNormalizer);
        out += with;
      } else {
        out.append(text, span.begin, span.end - span.begin);
      }
    }
    return out;
  });
}

void Normalizer::add_lowercase() {
  add([](const std::string& text, size_t) {
    std::string out;
    out.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
      const Utf8Char c = decode_utf8(text, at);
      at += c.size;
      if (c.value == 0x130) {
        out += "i\u0307";  // the one character whose lower case is two
      } else {
        append_utf8(out, to_lower(c.value));
      }
    }
    return out;
  });
}

void Normalizer::add_strip(bool left, bool right) {
  add([left, right](const std::string& text, size_t) {
    size_t begin = 0, end = 0, at = 0;
    bool seen = false;
    while (at < text.size()) {
      const Utf8Char c = decode_utf8(text, at);
      if (!is_white_space(c.value)) {
        if (!seen) begin = at;
        seen = true;
        end = at + c.size;
      }
      at += c.size;
    }
    if (!seen) return left || right ? std::string() : text;
    begin = left ? begin : 0;
    end = right ? end : text.size();
    return text.substr(begin, end - begin);
  });
}

void Normalizer::add_strip_accents() {
  add([](const std::string& text, size_t) {
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const Utf8Char c = decode_utf8(text, at);
      if (!is_mark(c.value)) out.append(text, at, c.size);
      at += c.size;
    }
    return out;
  });
}

void Normalizer::add_charsmap(Charsmap map) {
  add([shared = std::make_shared<const Charsmap>(std::move(map))](const std::string& text, size_t most) {
    return shared->empty() ? text : shared->replace_by_grapheme(text, most);
  });
}

std::pair<std::string_view, size_t> SentencePieceNormalizer::prefix(
    std::string_view text, size_t at, const std::function<size_t(std::string_view, size_t)>& keep) const {
  if (const size_t kept = keep(text, at); kept > 0) return {text.substr(at, kept), kept};
  std::string_view replacement;
  if (const size_t length = map.longest(text, at, &replacement); length > 0) return {replacement, length};
  const size_t size = decode_utf8(text, at).size;
  return {text.substr(at, size), size};
}

std::string SentencePieceNormalizer::apply(std::string_view text,
                                           const std::function<size_t(std::string_view, size_t)>& keep,
                                           size_t most) const {
  const std::string_view space = escape_whitespaces ? "\u2581" : " ";
  size_t at = 0;
  while (remove_extra_whitespaces && at < text.size()) {
    const auto [part, consumed] = prefix(text, at, keep);
    if (part != " ") break;
    at += consumed;
  }
  if (at >= text.size()) return {};
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  if (add_dummy_prefix && !space_as_suffix) out += space;
  bool after_space = remove_extra_whitespaces;
  while (at < text.size()) {
    auto [part, consumed] = prefix(text, at, keep);
    at += consumed;
    while (after_space && !part.empty() && part[0] == ' ') part.remove_prefix(1);
    check_growth(out.size() + part.size(), most, kNormalizer);
    if (!part.empty()) {
      for (const char c : part) {
        if (c == ' ') {
          out += space;
        } else {
          out += c;
        }
      }
      after_space = remove_extra_whitespaces && part.back() == ' ';
    }
  }
  while (remove_extra_whitespaces && out.ends_with(space)) out.resize(out.size() - space.size());
  if (add_dummy_prefix && space_as_suffix) out += space;
  return out;
}

}  // namespace fathom
