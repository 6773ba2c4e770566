#include "io/file_kind.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>
#include <string_view>

#include "io/llama2c.h"

namespace fathom {
namespace {

struct Magic {
  std::string_view bytes;
  FileKind kind;
};
// Old GGML wrote its magic as a little-endian integer: the letters stand reversed in the file.
constexpr Magic kMagics[] = {
    {"GGUF", FileKind::kGguf},
    {"FUGG", FileKind::kGguf},
    {"lmgg", FileKind::kOldGgml},
    {"fmgg", FileKind::kOldGgml},
    {"tjgg", FileKind::kOldGgml},
    {"algg", FileKind::kOldGgml},
    {"ggml", FileKind::kOldGgml},
    {"ggmf", FileKind::kOldGgml},
    {"ggjt", FileKind::kOldGgml},
    {"ggla", FileKind::kOldGgml},
    {"24ka", FileKind::kLlama2cVersioned},
    {"PK\x03\x04", FileKind::kTorchZip},
    {"\x93NUMPY", FileKind::kNumpy},
    {"\x89HDF\r\n", FileKind::kHdf5},
    {"version https://git-lfs", FileKind::kGitLfsPointer},
};

// Protocol 2 to 5, as every pickle since 2003 starts.
bool is_pickle(std::string_view start) {
  return start.size() >= 2 && start[0] == '\x80' && start[1] >= 2 && start[1] <= 5;
}

bool is_safetensors(std::string_view start, uint64_t size) {
  uint64_t header = 0;
  if (start.size() < 9) return false;
  std::memcpy(&header, start.data(), 8);
  return header >= 2 && header <= size - 8 && start[8] == '{';
}

// A protocol buffer whose first field is the version of the format, then the name of the program that wrote
// it.
bool is_onnx(std::string_view start, const std::string& path) {
  return start.size() >= 3 && start[0] == 8 && start[1] > 0 && start[1] < 32 &&
         (start[2] == 0x12 || path.ends_with(".onnx"));
}

bool is_html(std::string_view start) {
  std::string text(start.substr(0, 64));
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text.find("<!doctype html") != std::string::npos || text.find("<html") != std::string::npos;
}

FileKind kind_of_folder(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path + "/config.json", ignored)) return FileKind::kHfDirectory;
  if (std::filesystem::exists(path + "/adapter_config.json", ignored)) return FileKind::kAdapterDirectory;
  return FileKind::kDirectory;
}

FileKind kind_of_start(std::string_view start, uint64_t size, const std::string& path) {
  if (size == 0) return FileKind::kEmpty;
  for (const Magic& magic : kMagics) {
    if (start.starts_with(magic.bytes)) return magic.kind;
  }
  if (is_pickle(start)) return FileKind::kPickle;
  if (is_safetensors(start, size)) return FileKind::kSafetensors;
  if (looks_like_llama2c(std::as_bytes(std::span(start)), size)) return FileKind::kLlama2c;
  if (is_onnx(start, path)) return FileKind::kOnnx;
  if (is_html(start)) return FileKind::kHtml;
  if (start[0] == '{' || start[0] == '[') return FileKind::kJson;
  return FileKind::kUnknown;
}

}  // namespace

FileKind file_kind(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return FileKind::kMissing;
  if (S_ISDIR(info.st_mode)) return kind_of_folder(path);
  if (!S_ISREG(info.st_mode)) return FileKind::kUnknown;  // reading a pipe would take its bytes away
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return FileKind::kMissing;
  std::array<char, 256> start;
  size_t length = 0;
  while (length < start.size()) {
    const ssize_t got = ::read(fd, start.data() + length, start.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    length += static_cast<size_t>(got);
  }
  ::close(fd);
  return kind_of_start({start.data(), length},
                       length < start.size() ? length : static_cast<uint64_t>(info.st_size), path);
}

const char* describe(FileKind kind) {
  switch (kind) {
    case FileKind::kMissing:
      return "nothing that can be read";
    case FileKind::kGguf:
      return "a GGUF file";
    case FileKind::kSafetensors:
      return "a safetensors file; give the folder that holds it and config.json";
    case FileKind::kLlama2c:
      return "a llama2.c checkpoint";
    case FileKind::kLlama2cVersioned:
      return "a versioned llama2.c checkpoint; export it with --version 0";
    case FileKind::kHfDirectory:
      return "a Hugging Face folder";
    case FileKind::kAdapterDirectory:
      return "a folder with an adapter and no model; merge it into its base model first";
    case FileKind::kDirectory:
      return "a folder without config.json";
    case FileKind::kOldGgml:
      return "a GGML file from before GGUF; convert the original model again with a newer tool";
    case FileKind::kTorchZip:
      return "a PyTorch (zip) file, which is never opened; save the model as safetensors";
    case FileKind::kPickle:
      return "a Python pickle, which is never opened; save the model as safetensors";
    case FileKind::kOnnx:
      return "an ONNX file; give the original model as safetensors or GGUF";
    case FileKind::kNumpy:
      return "a NumPy array";
    case FileKind::kHdf5:
      return "an HDF5 file; give the model as safetensors or GGUF";
    case FileKind::kGitLfsPointer:
      return "a Git LFS pointer, not the file itself; fetch it with git lfs pull";
    case FileKind::kHtml:
      return "a web page, perhaps saved in place of a download";
    case FileKind::kJson:
      return "a JSON text";
    case FileKind::kEmpty:
      return "an empty file";
    case FileKind::kUnknown:
      return "a file of unknown kind";
  }
  return "a file of unknown kind";
}

}  // namespace fathom
