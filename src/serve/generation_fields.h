// The fields that chat and completion requests share.
#pragma once

#include "serve/api_request.h"
#include "serve/body_reader.h"

namespace fathom {

void read_generation_fields(const BodyReader& body, const ApiLimits& limits, GenerationFields& into);

}  // namespace fathom
