#include "train/staged_part.h"

#include <bit>
#include <mutex>

#include "tensor/memory.h"

namespace fathom {

struct StagingRooms::Shelf {
  explicit Shelf(Device where) : device(where) {}
  const Device device;
  std::mutex mutex;
  std::vector<Block> free;
};

StagingRooms::StagingRooms(Device device) : shelf_(std::make_shared<Shelf>(device)) {}

// Steps are of about the same size: a block that is too small is thrown away for a larger one.
std::shared_ptr<int32_t> StagingRooms::take(size_t numbers) {
  Block block;
  {
    const std::lock_guard lock(shelf_->mutex);
    if (!shelf_->free.empty()) {
      block = std::move(shelf_->free.back());
      shelf_->free.pop_back();
    }
  }
  if (block.numbers < numbers) {
    block = {};
    const size_t room = std::bit_ceil(numbers);
    block = {allocate_staging(shelf_->device, room * sizeof(int32_t)), room};
  }
  auto* const data = static_cast<int32_t*>(block.memory.get());
  return {data, [shelf = shelf_, block = std::move(block)](int32_t*) {
            const std::lock_guard lock(shelf->mutex);
            shelf->free.push_back(block);
          }};
}

std::vector<BatchRow> rows_of(const TrainBatch& part) {
  std::vector<BatchRow> rows(part.tokens.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = {part.tokens[i], part.positions[i], part.sequence[i], part.weights[i] > 0,
               part.sequence_keys[static_cast<size_t>(part.sequence[i])]};
  }
  return rows;
}

StagedPart stage_part(const TrainBatch& part, double weight_sum, StagingRooms& rooms) {
  StagedPart staged;
  staged.rows = rows_of(part);
  staged.shape = batch_shape(staged.rows);
  staged.targets_at = next_piece(staged.shape.numbers());
  staged.weights_at = next_piece(staged.targets_at + staged.shape.wanted);
  staged.numbers = staged.weights_at + staged.shape.wanted;
  staged.share = part.weight_sum / weight_sum;
  const std::shared_ptr<int32_t> block = rooms.take(static_cast<size_t>(staged.numbers));
  std::fill_n(block.get(), staged.numbers, 0);
  write_batch(staged.rows, staged.shape, block.get());
  int32_t *targets = block.get() + staged.targets_at, *weights = block.get() + staged.weights_at;
  for (size_t i = 0; i < part.tokens.size(); ++i) {
    if (part.weights[i] <= 0) continue;
    *targets++ = part.targets[i];
    *weights++ =
        std::bit_cast<int32_t>(static_cast<float>(static_cast<double>(part.weights[i]) / weight_sum));
  }
  staged.block = block;
  return staged;
}

}  // namespace fathom
