// Prompts that share no beginning, and when they come.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "load/load_loop.h"

namespace fathom {

class Prompts {
 public:
  // Ids below `vocab`, at random. The first ones, which may be special, are left out.
  explicit Prompts(int32_t vocab);
  // Pieces of a text, in ids of the server's own tokenizer.
  Prompts(const Server& server, const std::string& text);

  // `index`: another prompt for each.
  std::vector<int32_t> make(uint64_t seed, int64_t index, int64_t tokens) const;

 private:
  int32_t vocab_ = 0;
  std::vector<int32_t> ids_;
};

// Times of a Poisson process of `rate` a second, until `seconds`.
std::vector<double> poisson_arrivals(double rate, double seconds, uint64_t seed);

}  // namespace fathom
