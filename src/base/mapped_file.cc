#include "base/mapped_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "base/format.h"
#include "base/system_memory.h"

namespace fathom {
namespace {

// Read by the signal handler: plain atomics in static storage, no locks.
struct MappedRange {
  std::atomic<uintptr_t> begin{0}, end{0};
  std::atomic<const char*> path{nullptr};
};
constexpr int kMaxRanges = 1024;
std::array<MappedRange, kMaxRanges> ranges;
struct sigaction previous_action;

void write_all(const char* text) {
  const ssize_t ignored = ::write(STDERR_FILENO, text, std::strlen(text));
  static_cast<void>(ignored);
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const MappedRange& range : ranges) {
    if (address < range.begin.load() || address >= range.end.load()) continue;
    const char* path = range.path.load();
    write_all("fathom: the file was truncated or could not be read while in use: ");
    write_all(path ? path : "?");
    write_all("\n");
    _exit(1);
  }
  // Not one of ours: hand it on.
  if ((previous_action.sa_flags & SA_SIGINFO) && previous_action.sa_sigaction) {
    previous_action.sa_sigaction(signal, info, context);
  } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(signal);
  } else {
    ::signal(SIGBUS, SIG_DFL);  // the instruction runs again and ends the process as it would have
  }
}

int register_range(const std::byte* data, size_t size, const char* path) {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &action, &previous_action);
  });
  for (int slot = 0; slot < kMaxRanges; ++slot) {
    MappedRange& range = ranges[static_cast<size_t>(slot)];
    const char* expected = nullptr;
    if (!range.path.compare_exchange_strong(expected, path)) continue;
    range.begin = reinterpret_cast<uintptr_t>(data);
    range.end = reinterpret_cast<uintptr_t>(data) + size;
    return slot;
  }
  return -1;  // more files than the table holds: they work, they are only not named
}

struct FileHandle {
  // Without waiting: a pipe has no writer perhaps.
  explicit FileHandle(const std::string& path)
      : fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~FileHandle() {
    if (fd >= 0) ::close(fd);
  }
  int fd;
};

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path, Mode mode) {
  std::shared_ptr<MappedFile> file(new MappedFile);
  file->path_ = path;
  const FileHandle handle(path);
  if (handle.fd < 0) fail("cannot open {}: {}", printable(path), std::strerror(errno));
  struct stat info {};
  if (fstat(handle.fd, &info) != 0) fail("cannot read {}: {}", printable(path), std::strerror(errno));
  if (!S_ISREG(info.st_mode)) fail("expected a file, got a folder or device: {}", printable(path));
  file->size_ = static_cast<size_t>(info.st_size);
  if (file->size_ == 0) return file;
  if (mode == Mode::kMap) {
    void* data = mmap(nullptr, file->size_, PROT_READ, MAP_SHARED, handle.fd, 0);
    if (data == MAP_FAILED) fail("cannot map {}: {}", printable(path), std::strerror(errno));
    file->data_ = static_cast<const std::byte*>(data);
    file->slot_ = register_range(file->data_, file->size_, file->path_.c_str());
    return file;
  }
  file->copy_ = std::make_unique_for_overwrite<std::byte[]>(file->size_);
  for (size_t done = 0; done < file->size_;) {
    const ssize_t got = ::read(handle.fd, file->copy_.get() + done, file->size_ - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("cannot read {}: {}", printable(path), std::strerror(errno));
    if (got == 0) fail("{} became shorter while it was read", printable(path));
    done += static_cast<size_t>(got);
  }
  file->data_ = file->copy_.get();
  return file;
}

void MappedFile::forget(std::span<const std::byte> bytes) {
  const std::span<const std::byte> pages = whole_pages(bytes);
  if (pages.empty()) return;
  const auto begin = reinterpret_cast<uintptr_t>(pages.data()), end = begin + pages.size();
  for (const MappedRange& range : ranges) {
    const char* path = range.path.load();
    if (!path || begin < range.begin.load() || end > range.end.load()) continue;
    if (range.path.load() != path || begin < range.begin.load()) continue;  // another file took the place
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
    return;
  }
}

MappedFile::~MappedFile() {
  if (slot_ >= 0) {
    MappedRange& range = ranges[static_cast<size_t>(slot_)];
    range.begin = range.end = 0;
    range.path = nullptr;
  }
  if (data_ && !copy_) munmap(const_cast<std::byte*>(data_), size_);
}

std::string read_text_file(const std::string& path, size_t limit) {
  const auto file =
      MappedFile::open(path);  // mapped: nothing is allocated before the size is known to be sane
  const auto bytes = file->bytes();
  if (bytes.size() > limit)
    fail("{} has {} bytes, more than the {} expected at most", printable(path), bytes.size(), limit);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace fathom
