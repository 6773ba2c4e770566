#include "ops/attention_block_body.h"

namespace fathom {

const AttentionBlock kAttentionBlockDotprod = kTable;

}  // namespace fathom
