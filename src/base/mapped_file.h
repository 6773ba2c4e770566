// A read-only view of a whole file. If the file is truncated while mapped, touching the lost pages ends the
// process with one line naming the file (a SIGBUS handler knows the mapped ranges), not with a bare signal.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace fathom {

class MappedFile {
 public:
  enum class Mode { kMap, kRead };  // kRead: copied to memory (--no-mmap)

  static std::shared_ptr<const MappedFile> open(const std::string& path, Mode mode = Mode::kMap);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Call it for bytes that are not read again soon. Where they are part of a mapped file, their whole pages
  // no longer count as this process's memory; a later read brings them back. Other memory is left alone.
  static void forget(std::span<const std::byte> bytes);
  const std::string& path() const { return path_; }

 private:
  MappedFile() = default;
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  int slot_ = -1;  // in the SIGBUS handler's table; -1: not mapped
  std::unique_ptr<std::byte[]> copy_;
};

// The whole of a small text file; more than `limit` bytes is a UserError.
std::string read_text_file(const std::string& path, size_t limit = size_t{1} << 30);

}  // namespace fathom
