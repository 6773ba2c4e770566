// What attention may look at, per sequence of one layer: a list of entries, each an index into the pool of
// keys and values, with its own position. Never layer × position arithmetic: a layer holds only the entries
// that exist.
#pragma once

#include "tensor/tensor.h"

namespace fathom {

struct KvView {
  Tensor k, v;       // pool: (slots, kv_heads, head_dim), f32, f16, bf16 or q8_0 (blocks along head_dim)
  Tensor entries;    // i32 (sequences, capacity): slots in the pool, oldest first
  Tensor positions;  // i32 (sequences, capacity): position of each entry, ascending
  Tensor lengths;    // i32 (sequences): entries that exist
  Tensor bias;       // f32 (sequences, capacity): added to the logit of that key; undefined: none
};

}  // namespace fathom
