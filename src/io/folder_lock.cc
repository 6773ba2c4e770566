#include "io/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/format.h"
#include "base/log.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

std::string holder_of(int fd) {
  std::array<char, 16> text{};
  const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
  std::string digits;
  for (ssize_t i = 0; i < got && std::isdigit(static_cast<unsigned char>(text[static_cast<size_t>(i)])); ++i)
    digits += text[static_cast<size_t>(i)];
  return digits.empty() ? "another process" : "process " + digits;
}

}  // namespace

FolderLock::FolderLock(const std::string& folder) : folder_(folder), path_(folder + "/.lock") {
  make_folder();
  try {
    while (!take()) {
    }
  } catch (...) {
    remove_made();
    throw;
  }
  write_holder();
}

FolderLock::~FolderLock() {
  ::unlink(path_.c_str());
  ::close(fd_);
  remove_made();
}

void FolderLock::make_folder() {
  std::error_code error;
  for (fs::path missing = fs::absolute(folder_, error).lexically_normal();
       !error && missing.has_relative_path(); missing = missing.parent_path()) {
    if (missing.filename().empty()) continue;  // a slash at the end
    if (fs::exists(missing, error)) break;
    made_.push_back(missing.string());
  }
  fs::create_directories(folder_, error);
  if (!error) return;
  const std::string why = error.message();
  remove_made();
  fail("cannot create the folder {}: {}", printable(folder_), why);
}

// Returns false where the file was another's when it was opened and is gone now.
bool FolderLock::take() {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0666);
  if (fd_ < 0) fail("cannot write {}: {}", printable(path_), std::strerror(errno));
  struct stat held {
  }, named{};
  if (fstat(fd_, &held) != 0 || !S_ISREG(held.st_mode)) {
    ::close(fd_);
    fail("{}: expected a plain file", printable(path_));
  }
  if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      const std::string holder = holder_of(fd_);
      ::close(fd_);
      fail("{} is in use: {} is writing to it", printable(folder_), holder);
    }
    log_warn(
        fmt::format("{} cannot be locked ({}): keep other runs away from it", folder_, std::strerror(errno)));
    return true;
  }
  if (::stat(path_.c_str(), &named) == 0 && named.st_ino == held.st_ino && named.st_dev == held.st_dev)
    return true;
  ::close(fd_);
  return false;
}

void FolderLock::write_holder() const {
  const std::string text = std::to_string(getpid()) + "\n";
  if (ftruncate(fd_, 0) != 0 || ::pwrite(fd_, text.data(), text.size(), 0) < 0)
    log_warn(fmt::format("{} does not name its process: {}", path_, std::strerror(errno)));
}

void FolderLock::remove_made() {
  for (const std::string& folder : made_) {
    if (::rmdir(folder.c_str()) != 0) return;
  }
}

}  // namespace fathom
