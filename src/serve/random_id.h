// Names of requests.
#pragma once

#include <string>

namespace fathom {

// Returns the prefix and 24 random digits: "chatcmpl-…".
std::string random_id(const char* prefix);

}  // namespace fathom
