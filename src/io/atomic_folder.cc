#include "io/atomic_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/format.h"

namespace fathom {

namespace fs = std::filesystem;

void sync_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

AtomicFolder::AtomicFolder(const std::string& path) : path_(fs::path(path).lexically_normal().string()) {
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
  if (fs::exists(path_)) fail("{} exists already: give the name of a new folder", printable(path_));
  temporary_ = fmt::format("{}.tmp-{}", path_, ::getpid());
  std::error_code error;
  fs::create_directories(temporary_, error);
  if (error) fail("cannot create the folder {}: {}", printable(path_), error.message());
}

AtomicFolder::~AtomicFolder() {
  if (committed_) return;
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

void AtomicFolder::commit() {
  sync_folder(temporary_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    fail("cannot create {}: {}", printable(path_), std::strerror(errno));
  committed_ = true;
  sync_folder(fs::path(path_).parent_path().empty() ? "." : fs::path(path_).parent_path().string());
}

}  // namespace fathom
