// Names for what a result depends on, so that kept results are never taken for those of something else.
#pragma once

#include <string>

#include "eval/evaluate.h"

namespace fathom {

// Every request's tokens, how answers are written and judged, and what is right.
std::string identity_of(const Task& task, const EncodedTask& encoded);

std::string identity_of(std::span<const float> values);
std::string identity_of(std::span<const int32_t> values);

}  // namespace fathom
