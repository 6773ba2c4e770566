// What happens to a text before it is cut: a list of steps, each a string to a string.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "text/charsmap.h"
#include "text/regex.h"

namespace fathom {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

std::string to_normal_form(std::string_view valid_utf8, NormalForm form);
// A result of more than `most` bytes is a UserError.
std::string replace_all(std::string_view text, std::string_view what, std::string_view with,
                        size_t most = SIZE_MAX, const char* part = "a step");

class Normalizer {
 public:
  // step(text, most): a result of more than `most` bytes is a UserError, before it is made.
  using Step = std::function<std::string(const std::string&, size_t most)>;

  void add(Step step);
  bool empty() const { return steps_.empty(); }
  std::string apply(const std::string& text) const;

  void add_normal_form(NormalForm form);
  void add_prepend(const std::string& text);  // an empty text stays empty
  void add_replace(const std::string& what, const std::string& with);
  void add_replace(Regex what, const std::string& with);
  void add_lowercase();
  void add_strip(bool left, bool right);
  void add_strip_accents();
  void add_charsmap(Charsmap map);

 private:
  std::vector<Step> steps_;
};

// SentencePiece's own: the character map, then spaces.
struct SentencePieceNormalizer {
  Charsmap map{""};
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  bool space_as_suffix = false;

  // `keep(text, at)`: length of a user-defined symbol that must not be changed, 0 for none.
  std::string apply(std::string_view text, const std::function<size_t(std::string_view, size_t)>& keep,
                    size_t most = SIZE_MAX) const;

 private:
  // The normalised start of `text` at `at`, and how many bytes it stands for.
  std::pair<std::string_view, size_t> prefix(
      std::string_view text, size_t at, const std::function<size_t(std::string_view, size_t)>& keep) const;
};

}  // namespace fathom
