#include "text/growth.h"

#include "base/format.h"

namespace fathom {

void check_growth(size_t bytes, size_t most, const char* part) {
  require(bytes <= most, "tokenizer: {} makes a text longer than {} bytes: it is not one to trust", part,
          most);
}

void check_steps(size_t steps, const char* part) {
  require(steps <= kMostSteps, "tokenizer: {} has more than {} steps", part, kMostSteps);
}

}  // namespace fathom
