// Tokens to text: a list of steps, as the file lists them. Bytes come out as they are, whole characters or
// not.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/regex.h"

namespace fathom {

class Decoder {
 public:
  void add_byte_level();
  void add_replace(std::string what, std::string with);
  void add_byte_fallback();
  void add_fuse();
  void add_strip(std::string content, size_t start, size_t stop);
  void add_metaspace(std::string replacement, bool strip_first);
  // SentencePiece: '▁' to a space; the first (or with `all_leading`, each before any text) loses its leading
  // one.
  void add_sentencepiece(bool strip_first, bool all_leading);
  // Where there is no decoder tokens are joined with a space between them.
  void add_join_with_spaces();

  std::string decode(std::vector<std::string> tokens) const;
  // One token as it stands inside a text: no step that looks at the start of the text.
  std::string piece(std::string token) const;

 private:
  enum class Kind {
    kByteLevel,
    kReplace,
    kByteFallback,
    kFuse,
    kStrip,
    kMetaspace,
    kSentencePiece,
    kJoinWithSpaces
  };
  struct Step {
    Kind kind;
    std::string what, with;
    size_t start = 0, stop = 0;
    bool first = false, all_leading = false;
  };
  void add(Step step);
  // More than `most` bytes are a UserError.
  static void apply_to_token(const Step& step, std::string& token, bool first, size_t most);

  std::vector<Step> steps_;
};

}  // namespace fathom
