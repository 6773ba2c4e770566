#define FATHOM_SIMD_PLAIN  // the oracle: the same lanes as plain loops
#include "ops/attention/attention_block_body.h"

namespace fathom {

const AttentionBlock kAttentionBlockScalar = kTable;

}  // namespace fathom
