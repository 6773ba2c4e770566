// Cuts a text into the pieces that are tokenised on their own: a list of steps, as the file lists them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex.h"

namespace fathom {

// What becomes of a match of the pattern that cuts.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// A text and its pieces. A step that changes characters gives the text a new buffer.
struct Pieces {
  std::string_view text;
  std::string buffer;           // what `text` points to once a step changed it
  std::vector<TextSpan> spans;  // the pieces; none is empty
  bool at_start = true;         // the text begins where the whole input begins
  size_t most = SIZE_MAX;       // bytes that a step may make of it: more are a UserError
  bool stand_ins = false;       // the text holds stand-ins for bytes (unicode.h)
};

class PreTokenizer {
 public:
  using Predicate = bool (*)(char32_t);
  enum class Prepend { kAlways, kFirst, kNever };

  void add_split(Regex pattern, SplitBehavior behavior, bool invert);
  void add_classes(Predicate matches, SplitBehavior behavior);  // every such character is a match
  void add_digit_groups();  // runs of digits in threes, counted from the right
  void add_byte_level(bool add_prefix_space, bool use_regex);
  void add_metaspace(std::string replacement, Prepend prepend, bool split);

  // Whether a step spells bytes as GPT-2 does. The pieces then come out as bytes again: the model's
  // vocabulary is bytes.
  bool byte_level() const { return byte_level_; }

  // `pieces.text` is set, and valid UTF-8.
  void run(Pieces& pieces) const;

 private:
  struct Step {
    std::function<void(Pieces&)> apply;
    bool spells_bytes = false;
  };
  void add(std::function<void(Pieces&)> apply);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace fathom
