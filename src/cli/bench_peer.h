// llama.cpp's own benchmarks, run between ours. One repetition each; what goes wrong over there is a
// UserError with its last words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fathom {

struct PeerSpeed {
  double prefill_tokens_per_s = 0, decode_tokens_per_s = 0;
};

class Peer {
 public:
  // `option`: "llama.cpp=PATH", of llama-bench or of the folder that holds it. Another form is a UsageError.
  explicit Peer(const std::string& option);

  // `depth`: tokens already in the cache.
  PeerSpeed run(const std::string& model, int64_t prompt, int64_t tokens, int64_t depth, int threads) const;

  // Tokens a second of `sequences` decoded together (llama-batched-bench, beside llama-bench).
  double run_batch(const std::string& model, int64_t sequences, int64_t prompt, int64_t tokens,
                   int threads) const;

 private:
  std::string program_;
};

}  // namespace fathom
