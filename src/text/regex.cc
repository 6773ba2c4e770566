#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <memory>

#include "base/format.h"
#include "text/regex_syntax.h"
#include "text/unicode.h"

namespace fathom {
namespace {

// Limits: enough for a word of some megabytes, little enough that no pattern runs away with the machine.
constexpr size_t kJitStack = size_t{64} << 20;
constexpr uint32_t kMatchLimit = 200'000'000;
constexpr uint32_t kDepthLimit = 50'000'000;
constexpr uint32_t kHeapLimitKib = 512 * 1024;

// What matching needs and threads must not share.
struct MatchState {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 * 1024, kJitStack, nullptr);

  MatchState() {
    require(data && context && stack, "regex: out of memory");
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_depth_limit(context, kDepthLimit);
    pcre2_set_heap_limit(context, kHeapLimitKib);
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~MatchState() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

MatchState& match_state() {
  static thread_local MatchState state;
  return state;
}

std::string error_text(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

Regex::Regex(std::string_view pattern) {
  require(is_valid_utf8(pattern), "regex: '{}' is not UTF-8", printable(pattern));
  // Oniguruma's ^ and $ are those of lines, whatever the options.
  compile(pcre2_pattern(pattern), pattern, PCRE2_MULTILINE);
}

Regex Regex::literal(std::string_view text) {
  require(is_valid_utf8(text), "regex: '{}' is not UTF-8", printable(text));
  Regex regex;
  regex.compile(text, text, PCRE2_LITERAL);
  return regex;
}

void Regex::compile(std::string_view pcre2, std::string_view shown, uint32_t extra_options) {
  shown_ = shown;
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  const bool is_literal = (extra_options & PCRE2_LITERAL) != 0;
  const uint32_t options = PCRE2_UTF | extra_options | (is_literal ? 0 : PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pcre2.data()), pcre2.size(), options, &error,
                             &offset, context.get());
  require(code != nullptr, "regex: '{}' cannot be compiled: {}", printable(shown), error_text(error));
  code_ = code;
  jit_ = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
}

Regex::~Regex() {
  pcre2_code_free(static_cast<pcre2_code*>(code_));
}

Regex::Regex(Regex&& other) noexcept : code_(other.code_), jit_(other.jit_), shown_(std::move(other.shown_)) {
  other.code_ = nullptr;
}

int Regex::match(std::string_view subject, size_t start) const {
  MatchState& state = match_state();
  const auto* code = static_cast<const pcre2_code*>(code_);
  const auto* text = reinterpret_cast<PCRE2_SPTR>(subject.data());
  if (jit_) {
    const int result = pcre2_jit_match(code, text, subject.size(), start, 0, state.data, state.context);
    if (result != PCRE2_ERROR_JIT_STACKLIMIT) return result;
  }
  // The interpreter keeps its place on the heap, which may grow further than the compiled code's stack.
  return pcre2_match(code, text, subject.size(), start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, state.data,
                     state.context);
}

void Regex::split(std::string_view subject, std::vector<TextSpan>& spans) const {
  require(subject.size() < UINT32_MAX, "regex: a text of 4 GiB or more");
  const PCRE2_SIZE* found = pcre2_get_ovector_pointer(match_state().data);
  size_t done = 0;    // cut up to here
  size_t search = 0;  // look from here
  bool matched = false;
  while (search <= subject.size()) {
    const int result = match(subject, search);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) {
      fail("regex: '{}' gave up on a text of {} bytes: {}", printable(shown_), subject.size(),
           error_text(result));
    }
    const size_t begin = found[0], end = found[1];
    if (begin == end && matched && done == end) {  // an empty match right after a match says nothing new
      if (search >= subject.size()) break;
      search += decode_utf8(subject, search).size;
      continue;
    }
    if (begin > done) spans.push_back({static_cast<uint32_t>(done), static_cast<uint32_t>(begin), false});
    spans.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end), true});
    done = search = end;
    matched = true;
  }
  if (done < subject.size())
    spans.push_back({static_cast<uint32_t>(done), static_cast<uint32_t>(subject.size()), false});
}

}  // namespace fathom
