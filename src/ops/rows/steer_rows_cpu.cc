#include <algorithm>
#include <bit>
#include <cmath>

#include "base/format.h"
#include "ops/kernels/row_set_cpu.h"
#include "ops/rows/steer_block.h"

namespace fathom {
namespace {

// The blocks of one unit.
class History {
 public:
  History(Tensor& history, int64_t unit)
      : blocks_(reinterpret_cast<SteeredBlock*>(history.data<int32_t>()) + unit),
        sequences_(history.dim(0)),
        length_(history.dim(1)),
        units_(history.dim(2)) {}
  bool has(int64_t sequence) const { return sequence >= 0 && sequence < sequences_; }
  SteeredBlock& at(int64_t sequence, int64_t block) const {
    if (block < 0 || block >= length_)
      fail("steered_thresholds: the history has {} blocks, got block {}", length_, block);
    return blocks_[(sequence * length_ + block) * units_];
  }

 private:
  SteeredBlock* blocks_;
  int64_t sequences_, length_, units_;
};

SteeringRule rule_of(const Steering& steering, int64_t units, int64_t sequence) {
  if (sequence < 0 || sequence >= steering.table.dim(0)) return {NAN, NAN, 0, 0, 0};
  const float* row = steering.table.data<float>() + sequence * kSteeringParts * units + steering.unit;
  return {row[0], row[units], row[2 * units], row[3 * units], row[4 * units]};
}

// The rows that take part, asked in order.
class Present {
 public:
  explicit Present(const RowSet* rows) : rows_(rows ? *rows : RowSet::none(0)), all_(!rows) {}
  bool has(int64_t row) {
    while (!all_ && next_ < rows_.count && rows_[next_] < row) ++next_;
    return all_ || (next_ < rows_.count && rows_[next_] == row);
  }

 private:
  KeptRows rows_;
  bool all_;
  int64_t next_ = 0;
};

}  // namespace

// One thread: each row's threshold depends on those before.
void steered_thresholds_kernel(CpuBackend, const Tensor& score, const Steering& steering, Tensor& history,
                               Tensor& out) {
  const History blocks(history, steering.unit);
  Present present(steering.present);
  for (int64_t r = 0; r < present_rows(score); ++r) {
    const int64_t sequence = steering.sequence.data<int32_t>()[r],
                  position = steering.positions.data<int32_t>()[r];
    const SteeringRule rule = rule_of(steering, history.dim(2), sequence);
    const bool at_budget = !std::isnan(rule.threshold), steers = at_budget && rule.share >= 0;
    float& threshold = out.data<float>()[r];
    threshold = at_budget ? std::max(rule.threshold, steering.least) : steering.own;
    if (!blocks.has(sequence)) continue;
    SteeredBlock& block = blocks.at(sequence, position / kSteeredRows);
    const auto place = static_cast<int>(position % kSteeredRows);
    const bool counts = steering.counts && present.has(r);
    if (counts && place == 0) {
      block.excess = steers ? rule.start : 0;
      if (position > 0) {
        const SteeredBlock& before = blocks.at(sequence, position / kSteeredRows - 1);
        block.excess =
            steers ? excess_after(before, rule.share, std::popcount(before.ran), std::popcount(before.seen))
                   : before.excess;
      }
    }
    if (steers) threshold = std::max(steered(rule, block.excess), steering.least);
    if (!counts) continue;
    const uint32_t bit = 1u << place;
    block.ran &= bit - 1;
    block.seen &= bit - 1;
    if (!steers) continue;
    block.seen |= bit;
    if (!(score.data<float>()[r] <= threshold)) block.ran |= bit;  // NaN runs
  }
}

}  // namespace fathom
