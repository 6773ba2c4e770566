// Which model an adapter belongs to.
#pragma once

#include <string>
#include <vector>

#include "model/model.h"

namespace fathom {

// Shape, tokenizer and norms are equal for the same model as a GGUF file or a Hugging Face folder, quantised
// or not, because quantisation leaves the norms alone.
struct Fingerprint {
  std::string shape;      // "width 576, layers 30, …"
  std::string tokenizer;  // sha256 of its tokens; "": the model has none
  std::string norms;      // sha256 of all RMSNorm weights as bf16, in forward order
  // Fixed ±1 sums over some rows of every matrix of the blocks, decoded; empty: an older adapter's. Rounding
  // to four bits alone moves them by about 8 % (projection_difference).
  std::vector<float> projections;
};
inline constexpr size_t kProjectionCount = 64;
Fingerprint fingerprint(Context& ctx, const Model& model);

// "" when the adapter fits, else what differs. A model without a tokenizer fits any.
std::string fingerprint_difference(const Fingerprint& adapter, const Fingerprint& model);

// Of what a measurement depends on: shape, tokenizer, norms, and the type and the beginning of every tensor.
// No LoRA beside the weights.
std::string identity_of(Context& ctx, const Model& model);

// How far the matrices are apart, as a share of the adapter's; 0 where one has no projections.
double projection_difference(const Fingerprint& adapter, const Fingerprint& model);

}  // namespace fathom
