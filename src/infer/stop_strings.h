// Ends a text at the first stop string that occurs in it, wherever the borders between tokens fall.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fathom {

class StopStrings {
 public:
  // An empty stop string is a UsageError: it would match everywhere.
  explicit StopStrings(std::vector<std::string> stops = {});

  // Takes the next piece and returns what may be shown: all but a tail that could still become a stop string.
  // Of several matches, the one that is complete first counts, as if the text came byte by byte (of those
  // that end together, the longest), so that the result does not depend on how the text was cut. After a
  // match nothing more is returned.
  std::string feed(std::string_view piece);

  // The end of the text: what was held back.
  std::string flush();

  bool stopped() const { return match_ >= 0; }
  // The stop string that matched.
  const std::string& matched() const { return stops_[static_cast<size_t>(match_)]; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  int match_ = -1;
};

}  // namespace fathom
