#include "skip/running_means.h"

#include <algorithm>

#include "base/format.h"

namespace fathom {

RunningMeans::Track& RunningMeans::of(int32_t sequence) {
  const auto at = static_cast<size_t>(sequence);
  if (at >= tracks_.size()) tracks_.resize(at + 1);
  Track& track = tracks_[at];
  if (track.rows.capacity() == 0) {
    track.rows.reserve(static_cast<size_t>(context_ * numbers_));
    track.sums.reserve(static_cast<size_t>((context_ / block_ + 1) * numbers_));
  }
  return track;
}

// In the order of the rows, whatever pieces they came in.
void RunningMeans::add_block(Track& track) const {
  const auto numbers = static_cast<size_t>(numbers_);
  const size_t block = track.sums.size() / numbers, first = block * static_cast<size_t>(block_);
  for (size_t k = 0; k < numbers; ++k) {
    double sum = block == 0 ? 0.0 : track.sums[(block - 1) * numbers + k];
    for (size_t row = first; row < first + static_cast<size_t>(block_); ++row)
      sum += double{track.rows[row * numbers + k]};
    track.sums.push_back(sum);
  }
}

void RunningMeans::centre(int32_t sequence, int64_t position, std::span<float> values) {
  Track& track = of(sequence);
  const auto numbers = static_cast<size_t>(numbers_), at = static_cast<size_t>(position);
  if (at * numbers > track.rows.size())
    fail("a centred row came before the rows that it is counted from: row {} of a sequence of {}", at,
         track.rows.size() / numbers);
  truncate(sequence, position);
  track.rows.insert(track.rows.end(), values.begin(), values.end());
  const size_t block = at / static_cast<size_t>(block_);
  if (block > 0) {
    const auto before = static_cast<double>(block * static_cast<size_t>(block_));
    for (size_t k = 0; k < numbers; ++k)
      values[k] -= static_cast<float>(track.sums[(block - 1) * numbers + k] / before);
  }
  if ((at + 1) % static_cast<size_t>(block_) == 0) add_block(track);
}

void RunningMeans::truncate(int32_t sequence, int64_t position) {
  if (block_ == 0 || static_cast<size_t>(sequence) >= tracks_.size()) return;
  Track& track = tracks_[static_cast<size_t>(sequence)];
  const auto numbers = static_cast<size_t>(numbers_);
  track.rows.resize(std::min(track.rows.size(), static_cast<size_t>(position) * numbers));
  track.sums.resize(std::min(track.sums.size(), static_cast<size_t>(position / block_) * numbers));
}

void RunningMeans::fork(int32_t from, int32_t to, int64_t position) {
  if (block_ == 0 || static_cast<size_t>(from) >= tracks_.size()) return;
  of(std::max(from, to));  // room first: a reference would not outlive it
  Track &source = of(from), &copy = of(to);
  copy.rows.assign(source.rows.begin(), source.rows.end());
  copy.sums.assign(source.sums.begin(), source.sums.end());
  truncate(to, position);
}

}  // namespace fathom
