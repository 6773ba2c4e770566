// A folder that is there whole or not at all: filled under a temporary name beside its place, synced,
// renamed.
#pragma once

#include <string>

namespace fathom {

// What a folder lists is on the disk when it returns. A folder that cannot be opened is left as it is.
void sync_folder(const std::string& path);

class AtomicFolder {
 public:
  explicit AtomicFolder(const std::string& path);  // something already there is a UserError
  ~AtomicFolder();                                 // not committed: everything written is removed
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  const std::string& path() const { return temporary_; }
  std::string file(const std::string& name) const { return temporary_ + "/" + name; }
  void commit();

 private:
  std::string path_, temporary_;
  bool committed_ = false;
};

}  // namespace fathom
