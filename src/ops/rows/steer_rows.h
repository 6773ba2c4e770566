// Thresholds that bring a sequence's share of rows that run back to the one that a budget wants.
#pragma once

#include "tensor/rows.h"

namespace fathom {

inline constexpr int64_t kSteeredRows = 32;   // of a block, by position
inline constexpr int64_t kSteeringParts = 5;  // of a budget: thresholds, shares, slopes up and down, starts
inline constexpr int64_t kSteeringWords = 3;  // of a block in the history: as in steer_block.h

// One unit's rule. At a row of block k the excess is `start`, plus the rows of the blocks before k that its
// sequence ran, less `share` of them; the row's threshold is threshold + slope · excess / kSteeredRows, with
// the slope up for an excess above 0, else the slope down.
struct Steering {
  const Tensor& table;  // f32 (sequences, 5 · units): each part's units side by side; a share below 0 or NaN:
                        // not steered
  int64_t unit;
  const Tensor& sequence;   // i32 (rows)
  const Tensor& positions;  // i32 (rows), rising in each sequence
  float own, least;         // as SequenceThresholds
  const RowSet* present;    // rows that take part; null: all. The others' thresholds mean nothing
  bool counts;              // these decisions are those that later blocks look back on
};

// history: i32 (sequences, blocks, units, 3), zero before the first rows; by position, so that rows that are
// taken back and fed again leave no trace. score: f32 (rows) -> f32 (rows): the thresholds, for select_rows.
Tensor steered_thresholds(Context& ctx, const Tensor& score, const Steering& steering, Tensor& history);

}  // namespace fathom
