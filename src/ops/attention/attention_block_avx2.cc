#include "ops/attention/attention_block_body.h"

namespace fathom {

const AttentionBlock kAttentionBlockAvx2 = kTable;

}  // namespace fathom
