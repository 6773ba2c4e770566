// The two kinds of failure: a user's mistake (an exception whose text is the whole message) and ours (an
// assert).
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace fathom {

// A missing or bad file, a value that does not fit, a limit that was hit. The command line prints
// `fathom: <what()>` and exits with 1.
class UserError : public std::runtime_error {
 public:
  explicit UserError(const std::string& message) : std::runtime_error(message) {}
};

// A bad option or option value: as above, but exits with 2.
class UsageError : public UserError {
 public:
  using UserError::UserError;
};

// `text` with control characters and invalid UTF-8 as \xNN, cut after `limit` bytes: names that come from
// files must not reach a terminal raw.
std::string printable(std::string_view text, size_t limit = 200);

// The nearest of `known` to `word` by edit distance, or "" when none is near: for "did you mean".
std::string nearest_name(std::string_view word, const std::string* known, size_t count);

}  // namespace fathom
