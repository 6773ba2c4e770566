// A compiled pattern (PCRE2, UTF-8). Safe to share between threads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

// A stretch of a text: a match, or what lies between two.
struct TextSpan {
  uint32_t begin = 0, end = 0;
  bool match = false;
};

class Regex {
 public:
  explicit Regex(std::string_view pattern);     // Oniguruma's syntax: see regex_syntax.h
  static Regex literal(std::string_view text);  // exactly this text
  ~Regex();
  Regex(Regex&& other) noexcept;
  Regex& operator=(Regex&&) = delete;

  // Cuts `subject` (valid UTF-8) into matches and the stretches between them, in order, appended to `spans`.
  // Empty matches are spans too, as they cut. UserError when the pattern needs more time or memory than a
  // tokenizer may take.
  void split(std::string_view subject, std::vector<TextSpan>& spans) const;

 private:
  Regex() = default;
  void compile(std::string_view pcre2, std::string_view shown, uint32_t extra_options);
  int match(std::string_view subject, size_t start) const;

  void* code_ = nullptr;  // pcre2_code
  bool jit_ = false;
  std::string shown_;  // the pattern as the file has it
};

}  // namespace fathom
