#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <cstring>

#include "base/format.h"

namespace fathom {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 18;

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

[[noreturn]] void fail_to_write(const std::string& path, int error) {
  fail("cannot write {}: {}", printable(path), std::strerror(error));
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
  if (path.empty()) fail("cannot write a file without a name");
  // A rename onto /dev/null would replace the device; onto a folder it fails only after everything is
  // written.
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    fail("cannot write {}: expected a plain file, it is a folder or device", printable(path));
  }
  create_temporary();
  buffer_.reserve(kBufferBytes);
}

void AtomicFile::create_temporary() {
  // Another writer of this process, or one that died with our number, may hold the plain name.
  constexpr int kAttempts = 100;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    temporary_ = fmt::format("{}.tmp-{}", path_, getpid());
    if (attempt > 0) temporary_ += fmt::format("-{}", attempt);
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ >= 0) return;
    if (errno != EEXIST) fail_to_write(path_, errno);
  }
  fail("cannot write {}: {} and others like it are in the way", printable(path_), printable(temporary_));
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::put(const char* data, size_t size) {
  while (size > 0) {
    const ssize_t put = ::write(fd_, data, size);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_to_write(path_, errno);
    data += put;
    size -= static_cast<size_t>(put);
  }
}

void AtomicFile::flush() {
  put(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void AtomicFile::write(std::string_view text) {
  assert(fd_ >= 0 && "written after commit()");
  written_ += text.size();
  if (buffer_.size() + text.size() > kBufferBytes) flush();
  if (text.size() >= kBufferBytes) return put(text.data(), text.size());
  buffer_ += text;
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  write(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

void AtomicFile::write_zeros(size_t count) {
  write(std::string(count, '\0'));
}

void AtomicFile::commit() {
  assert(fd_ >= 0 && "committed twice");
  flush();
  if (fsync(fd_) != 0) fail_to_write(path_, errno);
  const int closed = ::close(fd_);
  fd_ = -1;
  if (closed != 0) fail_to_write(path_, errno);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail_to_write(path_, errno);
  temporary_.clear();
  // The rename itself reaches the disk with the folder. Some file systems cannot sync one: the file is whole
  // anyway.
  const int folder = ::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  fsync(folder);
  ::close(folder);
}

void write_file_atomically(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace fathom
