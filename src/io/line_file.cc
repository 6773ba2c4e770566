#include "io/line_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/format.h"
#include "base/log.h"
#include "base/mapped_file.h"

namespace fathom {

LineFile::LineFile(const std::string& path, const std::function<void(std::string_view)>& take, bool clear)
    : path_(path) {
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
  if (fd_ < 0) fail_to_write(errno);
  try {
    struct stat info {};
    if (fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode))
      fail("cannot write {}: expected a plain file, it is a folder or device", printable(path));
    if (flock(fd_, LOCK_EX | LOCK_NB) != 0) fail("{}: another process is writing to it", printable(path));
    if (clear && ftruncate(fd_, 0) != 0) fail_to_write(errno);
    if (!clear && info.st_size > 0) read(take);
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

LineFile::~LineFile() {
  ::close(fd_);
}

void LineFile::read(const std::function<void(std::string_view)>& take) {
  const auto file = MappedFile::open(path_);
  const std::string_view text(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
  for (size_t end = text.find('\n'); end != std::string_view::npos;
       end = text.find('\n', static_cast<size_t>(size_))) {
    take(text.substr(static_cast<size_t>(size_), end - static_cast<size_t>(size_)));
    size_ = static_cast<int64_t>(end) + 1;
    ++lines_;
  }
  if (size_ < static_cast<int64_t>(text.size()) && ftruncate(fd_, size_) != 0) fail_to_write(errno);
}

void LineFile::append(const std::string& line) {
  const std::string whole = line + "\n";
  for (size_t done = 0; done < whole.size();) {
    const ssize_t put = ::write(fd_, whole.data() + done, whole.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      const int error = errno;
      if (ftruncate(fd_, size_) != 0) log_warn("what was written of the last line stays until the next run");
      fail_to_write(error);
    }
    done += static_cast<size_t>(put);
  }
  size_ += static_cast<int64_t>(whole.size());
  ++lines_;
  if (std::chrono::steady_clock::now() - synced_ >= std::chrono::seconds(1)) sync();
}

void LineFile::sync() {
  if (fdatasync(fd_) != 0) fail_to_write(errno);
  synced_ = std::chrono::steady_clock::now();
}

void LineFile::fail_to_write(int error) const {
  fail("cannot write {}: {}{}", printable(path_), std::strerror(error),
       lines_ > 0 ? fmt::format("; its {} lines are kept: the same command goes on from there", lines_) : "");
}

}  // namespace fathom
