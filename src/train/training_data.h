// A recipe's files as datasets.
#pragma once

#include <memory>

#include "train/config.h"
#include "train/dataset.h"

namespace fathom {

struct TrainingData {
  std::unique_ptr<Dataset> train;
  std::unique_ptr<Dataset> validation, prepare;  // null where the recipe has none
};

// Tokenizes what the cache does not hold yet. No data, or data that does not fit the model, is a UserError.
// cancel: when set, it ends with PrepareCancelled.
TrainingData open_training_data(Context& ctx, const TrainConfig& config, const Model& model,
                                const std::atomic<bool>* cancel = nullptr);

}  // namespace fathom
