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
  std::vector<std::string> files;  // those that are known to be as they were written

  bool has(const std::string& name) const;
};

struct KeptCheckpoints {
  int64_t newest = 0;  // how many whole ones stay; 0: all
  int64_t best = -1;   // this step's stays, whatever its age, and DIR/best points at it; -1: none is better
  bool again = false;  // write this step's although there is a whole one
};

// fill(folder) writes the files, `folder` not being there yet (save_hf makes it; others create_directories).
// They are written under a temporary name with our mark, with DONE, which lists every file's size and
// checksum, synced and renamed; then DIR/last is pointed here; then all that are not to be kept go. Damaged
// ones never count as kept. Whatever fails, what was there before is as it was, and what does not carry our
// mark is never removed. A whole checkpoint of this step that is already there is left alone.
CheckpointPlace write_checkpoint(const std::string& dir, int64_t step, const KeptCheckpoints& kept,
                                 const std::function<void(const std::string& folder)>& fill);

// The newest whole one: DONE is there and every file is as it says. Others are passed over with a warning.
std::optional<CheckpointPlace> newest_checkpoint(const std::string& dir);
// DIR, or one checkpoint itself. None is a UserError.
CheckpointPlace find_checkpoint(const std::string& path);

// What is in the way of checkpoints after this step and is not ours to remove is a UserError.
void check_run_folder(const std::string& dir, int64_t step);

// What crashed runs left half-written or half-removed, by our mark.
void remove_leftovers(const std::string& dir);

}  // namespace fathom
