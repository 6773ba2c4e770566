// llama.cpp's own benchmark, run between ours.
#pragma once

#include <string>

namespace fathom {

struct PeerSpeed {
  double prefill_tokens_per_s = 0, decode_tokens_per_s = 0;
};

class Peer {
 public:
  // `option`: "llama.cpp=PATH-TO-llama-bench". Another form is a UsageError.
  explicit Peer(const std::string& option);

  // One repetition. What goes wrong over there is a UserError with its last words.
  PeerSpeed run(const std::string& model, int64_t prompt, int64_t tokens, int threads) const;

 private:
  std::string program_;
};

}  // namespace fathom
