// What a path looks like from its first bytes, so that a caller can open the right reader, or refuse with a
// useful line.
#pragma once

#include <cstdint>
#include <string>

namespace fathom {

enum class FileKind : uint8_t {
  kMissing,  // nothing there, or not readable
  kGguf,
  kSafetensors,
  kLlama2c,           // legacy checkpoint
  kLlama2cVersioned,  // 'ak42': newer, not read
  kHfDirectory,       // a folder with config.json
  kAdapterDirectory,  // a folder with adapter_config.json and no config.json
  kDirectory,         // another folder
  kOldGgml,           // ggml, ggmf, ggjt, ggla: before GGUF
  kTorchZip,          // torch.save since 1.6
  kPickle,            // torch.save before, or any pickle
  kOnnx,
  kNumpy,
  kHdf5,
  kGitLfsPointer,  // the text that stands for a file that was not fetched
  kHtml,           // a download that was an error page
  kJson,
  kEmpty,
  kUnknown,
};

FileKind file_kind(const std::string& path);

// One phrase for a message, with what to do where something can be done:
// "a PyTorch pickle, which is never opened; save the model as safetensors".
const char* describe(FileKind kind);

}  // namespace fathom
