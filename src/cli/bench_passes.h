// The passes that bench times.
#pragma once

#include <span>
#include <vector>

#include "infer/feeder.h"

namespace fathom {

std::vector<int32_t> random_tokens(const Model& model, int64_t count);

// Each -> seconds.

// `count` tokens of a sequence that is empty before, `chunk` of them in a pass; logits of the last.
double time_prefill(Feeder& feeder, int32_t sequence, int64_t count, int64_t chunk);
// `steps` passes of one token for each of the sequences; Ctrl-C ends them early.
double time_decode(Feeder& feeder, std::span<const int32_t> sequences, int64_t steps);
// `passes` passes of `rows` tokens of sequence 0, each from `position` on, with all their logits.
double time_verify(Feeder& feeder, int64_t position, int64_t rows, int64_t passes);

}  // namespace fathom
