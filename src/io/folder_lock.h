// One process at a time writes to a folder.
#pragma once

#include <string>
#include <vector>

namespace fathom {

// Holds FOLDER/.lock, which names this process, while it lives. The system releases the lock when the process
// ends, however it ends.
class FolderLock {
 public:
  // Makes the folder where it is missing. One that another process holds is a UserError with its number.
  explicit FolderLock(const std::string& folder);
  ~FolderLock();  // folders that it made go again where nothing was put into them
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  void make_folder();
  bool take();
  void write_holder() const;
  void remove_made();

  std::string folder_, path_;
  std::vector<std::string> made_;  // innermost first
  int fd_ = -1;
};

}  // namespace fathom
