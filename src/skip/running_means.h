// Numbers of a sequence's rows, counted from their mean so far. The mean is that of all whole blocks
// of rows before the row's own, so that it depends on no chunk's edge; in the first block it is 0.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fathom {

class RunningMeans {
 public:
  // numbers: of each row; block: rows of one; context: rows that a sequence has room for before it allocates.
  void set_size(int64_t numbers, int64_t block, int64_t context) {
    numbers_ = numbers, block_ = block, context_ = context;
  }
  // The row's numbers become their distance from the mean. Rows of a sequence come in order; one that comes
  // again takes the place of what was there.
  void centre(int32_t sequence, int64_t position, std::span<float> values);
  void truncate(int32_t sequence, int64_t position);
  void fork(int32_t from, int32_t to, int64_t position);

 private:
  struct Track {
    std::vector<float> rows;   // (rows, numbers)
    std::vector<double> sums;  // (whole blocks, numbers), each over all rows up to its end
  };
  Track& of(int32_t sequence);
  void add_block(Track& track) const;

  int64_t numbers_ = 0, block_ = 0, context_ = 0;
  std::vector<Track> tracks_;
};

}  // namespace fathom
