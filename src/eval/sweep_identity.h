// Names for what a result depends on, so that kept results are never taken for those of something else.
#pragma once

#include <string>

#include "eval/evaluate.h"

namespace fathom {

// Shape, tokenizer, norms, and the type and the beginning of every tensor.
std::string identity_of(Context& ctx, const Model& model);

// Every request's tokens, how answers are written and judged, and what is right.
std::string identity_of(const Task& task, const EncodedTask& encoded);

std::string identity_of(std::span<const float> values);
std::string identity_of(std::span<const int32_t> values);

}  // namespace fathom
