#include "eval/answers.h"

#include <algorithm>
#include <cctype>

#include "text/regex.h"
#include "text/unicode.h"

namespace fathom {
namespace {

constexpr const char* kInvalid = "[invalid]";

// What Python's str.isspace and \s take for white space.
bool is_space(char32_t c) {
  return is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}

std::string_view stripped(std::string_view text) {
  text = text.substr(0, length_without_trailing_space(text));
  while (!text.empty()) {
    const Utf8Char first = decode_utf8(text, 0);
    if (!is_space(first.value)) break;
    text.remove_prefix(first.size);
  }
  return text;
}

std::string removed(const Regex& pattern, const std::string& text) {
  std::vector<TextSpan> spans;
  pattern.split(text, spans);
  std::string out;
  for (const TextSpan& span : spans) {
    if (!span.match) out.append(text, span.begin, span.end - span.begin);
  }
  return out;
}

std::vector<std::string> matches(const Regex& pattern, const std::string& text) {
  std::vector<TextSpan> spans;
  pattern.split(text, spans);
  std::vector<std::string> out;
  for (const TextSpan& span : spans) {
    if (span.match) out.push_back(text.substr(span.begin, span.end - span.begin));
  }
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    append_utf8(out, to_lower(c.value));
    at += c.size;
  }
  return out;
}

std::string normal_text(const std::string& text, bool less_articles) {
  static const Regex kArticles("\\b(?:The |the |An |A |a |an )");
  std::string out = lower(less_articles ? removed(kArticles, text) : text);
  std::erase_if(out, [](char c) { return std::ispunct(static_cast<unsigned char>(c)) && (c & 0x80) == 0; });
  return out;
}

// The number of a worked answer ("… #### 18"), or of what was taken from one.
std::string normal_number(std::string text) {
  static const Regex kSteps("[\\s\\S]*#### "), kEnd("\\.\\Z");
  std::erase_if(text, [](char c) { return c == ',' || c == '$'; });
  return lower(removed(kEnd, removed(kSteps, text)));
}

std::string marked_number(const std::string& text) {
  static const Regex kMarked("#### -?[0-9.,]+");
  const std::vector<std::string> found = matches(kMarked, text);
  return found.empty() ? kInvalid : found.front().substr(5);
}

std::string last_number(const std::string& text) {
  static const Regex kNumber("-?[$0-9.,]{2,}|-?[0-9]+");
  const std::vector<std::string> found = matches(kNumber, text);
  return found.empty() ? kInvalid : found.back();
}

template <class Normal>
Judgement compare(const char* name, std::string answer, const std::vector<std::string>& right,
                  Normal&& normal) {
  const std::string given = normal(answer);
  const bool any =
      std::any_of(right.begin(), right.end(), [&](const std::string& one) { return normal(one) == given; });
  return {name, std::move(answer), any};
}

}  // namespace

std::vector<Judgement> judge(AnswerRule rule, std::string_view text, const std::vector<std::string>& right) {
  const std::string whole(text);
  const auto as_text = [&](bool less_articles) {
    return compare("exact_match", std::string(stripped(text)), right,
                   [&](const std::string& one) { return normal_text(one, less_articles); });
  };
  switch (rule) {
    case AnswerRule::kNone:
      return {};
    case AnswerRule::kText:
      return {as_text(false)};
    case AnswerRule::kTextLessArticles:
      return {as_text(true)};
    case AnswerRule::kNumber:
      return {compare("exact_match", marked_number(whole), right, normal_number),
              compare("exact_match_flexible", last_number(whole), right, normal_number)};
  }
  return {};
}

std::string_view before_stops(std::string_view text, const std::vector<std::string>& stops) {
  for (const std::string& stop : stops) text = text.substr(0, text.find(stop));
  return text;
}

int64_t count_words(std::string_view text) {
  int64_t words = 1;
  bool inside = false;  // white space
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    const bool space = is_space(c.value);
    if (space && !inside) ++words;
    inside = space;
    at += c.size;
  }
  return words;
}

size_t length_without_trailing_space(std::string_view text) {
  size_t end = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    at += c.size;
    if (!is_space(c.value)) end = at;
  }
  return end;
}

}  // namespace fathom
