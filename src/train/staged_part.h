// A micro-batch as it goes to the device: made by the thread that prepares data, uploaded in one copy.
#pragma once

#include <memory>
#include <vector>

#include "model/batch.h"
#include "train/dataset.h"

namespace fathom {

// Blocks of host memory for uploads, used again and again: page-locked where the device is a GPU. Any thread
// may take and let go of one.
class StagingRooms {
 public:
  explicit StagingRooms(Device device);
  // Room for this many numbers, until the last handle goes.
  std::shared_ptr<int32_t> take(size_t numbers);

 private:
  struct Shelf;
  struct Block {
    std::shared_ptr<void> memory;
    size_t numbers = 0;
  };
  std::shared_ptr<Shelf> shelf_;
};

// Its memory must stay until the device has been waited for.
struct StagedPart {
  std::vector<BatchRow> rows;
  BatchShape shape;
  // The batch, then the targets and the weights of the rows that predict something.
  std::shared_ptr<const int32_t> block;
  int64_t targets_at = 0, weights_at = 0, numbers = 0;
  double share = 0;  // of the step's weight
};

std::vector<BatchRow> rows_of(const TrainBatch& part);

// weight_sum: of the whole step; the weights are divided by it.
StagedPart stage_part(const TrainBatch& part, double weight_sum, StagingRooms& rooms);

}  // namespace fathom
