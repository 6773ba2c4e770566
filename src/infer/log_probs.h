// Log-probabilities of tokens, and the most likely ones, from rows of logits. All come from one op: a token
// that is the most likely has exactly the number of the first in the list.
#pragma once

#include <vector>

#include "infer/fathom.h"
#include "tensor/tensor.h"

namespace fathom {

// The `count` most likely tokens of a row, best first, ties to the lower id. logits: f32 (1, vocab)
std::vector<TokenLogProb> top_log_probs(Context& ctx, const Tensor& logits, int64_t count);

// Row i of logits (rows, vocab) predicts next[i]: appends the log-probability of each and, where top > 0, the
// most likely tokens.
void append_log_probs(Context& ctx, const Tensor& logits, std::span<const int32_t> next, int64_t top,
                      LogProbs& out);

// The first place whose log-probability is not a number; -1: there is none.
int64_t first_nan(const LogProbs& log_probs);

// Rows of logits to ask for in one pass: f32 logits stay below 32 MB.
int64_t most_logit_rows(int64_t vocab);

}  // namespace fathom
