#if defined(__GNUC__) && !defined(__clang__)
// Scheduling before register allocation lengthens the loads' lives until the tiles' sums spill: a third
// slower.
#pragma GCC optimize("no-schedule-insns")
#endif
#include "ops/attention/attention_block_body.h"

namespace fathom {

const AttentionBlock kAttentionBlockDotprod = kTable;

}  // namespace fathom
