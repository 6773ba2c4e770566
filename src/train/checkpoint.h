// Checkpoints DIR/step-N. After a crash at any point each one is whole or absent.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tensor/named_tensor.h"

namespace fathom {

struct CheckpointPlace {
  int64_t step = 0;
  std::string path;
};

// fill(folder) writes the files, `folder` not being there yet (save_hf makes it; others create_directories).
// They are written under a temporary name, synced and renamed; then DONE, which lists every file's size and
// checksum, is written; then DIR/last is pointed here; then all but the newest `keep` go (0: none goes).
// Whatever fails, what was there before is as it was. A whole checkpoint of this step that is already there
// is left alone.
CheckpointPlace write_checkpoint(const std::string& dir, int64_t step, int64_t keep,
                                 const std::function<void(const std::string& folder)>& fill);

// The newest whole one: DONE is there and every file is as it says. Others are passed over with a warning.
std::optional<CheckpointPlace> newest_checkpoint(const std::string& dir);
// DIR, or one checkpoint itself. None is a UserError.
CheckpointPlace find_checkpoint(const std::string& path);

// What crashed runs left half-written.
void remove_leftovers(const std::string& dir);

}  // namespace fathom
