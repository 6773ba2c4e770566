// Rotary position embedding (Su et al. 2021).
#pragma once

#include "tensor/tensor.h"

namespace fathom {

enum class RopeStyle : uint8_t {
  kHalves,  // rotates (i, i + d/2): Hugging Face, GPT-NeoX
  kPairs,   // rotates (2i, 2i + 1): llama2.c, GGUF files of the Llama architecture
};

struct RopeParams {
  RopeStyle style = RopeStyle::kHalves;
  float magnitude = 1.0f;  // YaRN's attention factor, on cos and sin
};

inline constexpr int64_t kMaxRopeDim = 1024;

// x: f32 (rows, heads, head_dim); positions: i32 (rows); inverse_frequency: f32 (head_dim / 2).
Tensor rope(Context& ctx, const Tensor& x, const Tensor& positions, const Tensor& inverse_frequency,
            RopeParams params = {});

// The same of an x whose values nothing else needs: in bf16 they are turned where they are.
Tensor rope_over(Context& ctx, const Tensor& x, const Tensor& positions, const Tensor& inverse_frequency,
                 RopeParams params = {});

}  // namespace fathom
