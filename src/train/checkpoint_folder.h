// One checkpoint's folder: whether it is whole, whether it is ours, and its removal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fathom {

inline constexpr const char* kCheckpointPrefix = "step-";  // step-N

// N of "step-N"; -1: another name.
int64_t checkpoint_step(const std::string& name);

// Says that the folder is ours to remove.
void write_mark(const std::string& folder);
// A folder, and no link to one, that carries the mark.
bool is_marked(const std::string& folder);

// The last file of a checkpoint: every other file's size and checksum.
void write_done(const std::string& folder, int64_t step);

struct CheckpointState {
  std::string damage;              // what is wrong; "": it is whole
  std::vector<std::string> files;  // that are as they were written
};
// Every file is read.
CheckpointState checkpoint_state(const std::string& folder, int64_t step);

// The first file in it that no checkpoint has; "": none.
std::string foreign_file(const std::string& folder);

// Removes a marked folder without foreign files; others stay, with a warning. A kill in the middle leaves a
// marked folder under a temporary name.
void remove_checkpoint(const std::string& folder);
// Removes what carries the mark, or nothing.
void remove_marked(const std::string& folder);

}  // namespace fathom
