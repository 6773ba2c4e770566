// Files that are there whole or not at all: written beside their place, synced, renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace fathom {

class AtomicFile {
 public:
  // Creates "<path>.tmp-<pid>"; a folder that cannot be written, or a path that is not a plain file, is a
  // UserError.
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();  // not committed: the temporary file is removed
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);  // disk full: a UserError with the path
  void write(std::string_view text);
  void write_zeros(size_t count);  // padding
  uint64_t written() const { return written_; }
  void commit();  // fsync, rename, fsync of the folder

 private:
  void create_temporary();
  void flush();
  void put(const char* data, size_t size);

  std::string path_, temporary_;
  int fd_ = -1;
  uint64_t written_ = 0;
  std::string buffer_;
};

void write_file_atomically(const std::string& path, std::string_view text);

}  // namespace fathom
