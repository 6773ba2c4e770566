// The checkpoints of llama2.c (legacy .bin, version 0): seven integers and float32 arrays in a fixed order.
// Knows no model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "tensor/named_tensor.h"
#include "tensor/tensor.h"

namespace fathom {

struct Llama2cHeader {
  int32_t dim = 0, hidden_dim = 0, n_layers = 0, n_heads = 0, n_kv_heads = 0;
  int32_t vocab_size = 0;  // as stored: negative when the output matrix is not the embedding
  int32_t seq_len = 0;

  bool tied() const { return vocab_size > 0; }
  int32_t vocab() const { return vocab_size < 0 ? -vocab_size : vocab_size; }
  int32_t head_dim() const { return dim / n_heads; }
  int32_t kv_dim() const { return head_dim() * n_kv_heads; }
};

class Llama2cFile {
 public:
  // Throws UserError "FILE: llama2.c: …" unless the header is one a model can have and the file has exactly
  // its size.
  static std::shared_ptr<const Llama2cFile> open(const std::string& path,
                                                 MappedFile::Mode mode = MappedFile::Mode::kMap);
  // The same over bytes in memory (fuzzing, tests); `owner` keeps them alive.
  static std::shared_ptr<const Llama2cFile> parse(std::span<const std::byte> bytes,
                                                  std::shared_ptr<const void> owner, const std::string& name);

  const Llama2cHeader& header() const { return header_; }
  // All f32, views of the mapping, layers outermost, matrices (out, in), rotary pairs adjacent:
  //   token_embedding (vocab, dim)
  //   attention_norm, ffn_norm (layers, dim)
  //   wq, wo (layers, dim, dim)   wk, wv (layers, kv_dim, dim)
  //   w1 (gate), w3 (up) (layers, hidden, dim)   w2 (down) (layers, dim, hidden)
  //   final_norm (dim)
  //   output (vocab, dim), only when not tied
  const std::vector<NamedTensor>& tensors() const { return tensors_; }
  const Tensor& tensor(std::string_view name) const;  // one of the names above

 private:
  Llama2cHeader header_;
  std::vector<NamedTensor> tensors_;
};

// Whether a file of `file_bytes` that starts with `start` can be one of these: there is no magic to look for.
bool looks_like_llama2c(std::span<const std::byte> start, uint64_t file_bytes);

}  // namespace fathom
