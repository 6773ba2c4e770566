#include "load/prompts.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/rng.h"

namespace fathom {
namespace {

constexpr int32_t kLeftOut = 300;  // special tokens and single bytes stand first in most vocabularies

}  // namespace

Prompts::Prompts(int32_t vocab) : vocab_(vocab) {
  require(vocab > 2 * kLeftOut, "a vocabulary of {} is too small for random prompts", vocab);
}

Prompts::Prompts(const Server& server, const std::string& text) {
  // One server reads "prompt", the other "content", and each ignores what it does not know.
  const nlohmann::json body{{"prompt", text}, {"content", text}, {"add_special_tokens", false}};
  const auto reply = nlohmann::json::parse(ask(server, "/tokenize", body.dump()), nullptr, false);
  require(reply.is_object() && reply.contains("tokens"), "/tokenize gave no tokens");
  ids_ = reply["tokens"].get<std::vector<int32_t>>();
}

std::vector<int32_t> Prompts::make(uint64_t seed, int64_t index, int64_t tokens) const {
  Rng rng(seed, {static_cast<uint32_t>(index), 1, 0});
  std::vector<int32_t> prompt;
  if (ids_.empty()) {
    for (int64_t i = 0; i < tokens; ++i)
      prompt.push_back(kLeftOut + static_cast<int32_t>(rng.below(static_cast<uint32_t>(vocab_ - kLeftOut))));
    return prompt;
  }
  require(std::ssize(ids_) > 2 * tokens, "the text has {} tokens, too few for prompts of {}", ids_.size(),
          tokens);
  const auto first = rng.below(static_cast<uint32_t>(std::ssize(ids_) - tokens));
  return {ids_.begin() + first, ids_.begin() + first + tokens};
}

std::vector<double> poisson_arrivals(double rate, double seconds, uint64_t seed) {
  Rng rng(seed, {0, 2, 0});
  std::vector<double> times;
  for (double at = 0;;) {
    at -= std::log(1 - rng.uniform_double()) / rate;
    if (at >= seconds) return times;
    times.push_back(at);
  }
}

}  // namespace fathom
