// safetensors, single files and sharded directories. Knows no model.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "tensor/named_tensor.h"
#include "tensor/tensor.h"

namespace fathom {

// A tensor that the format allows and we have no type for. Many files carry some that no model needs (masks,
// position ids), so they are listed rather than refused.
struct UnsupportedTensor {
  std::string name;
  std::string why;  // "dtype I64", "5 dimensions"
};

class SafetensorsFile {
 public:
  // Throws UserError "FILE: safetensors: …" on anything the format does not allow.
  static std::shared_ptr<const SafetensorsFile> open(const std::string& path,
                                                     MappedFile::Mode mode = MappedFile::Mode::kMap);
  // The same over bytes in memory (fuzzing, tests); `owner` keeps them alive.
  static std::shared_ptr<const SafetensorsFile> parse(std::span<const std::byte> bytes,
                                                      const std::shared_ptr<const void>& owner,
                                                      const std::string& name);

  // In offset order; views of the mapping, or copies where the file does not align them for their type.
  const std::vector<NamedTensor>& tensors() const { return tensors_; }
  const Tensor* find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::vector<UnsupportedTensor>& unsupported() const { return unsupported_; }

 private:
  std::vector<NamedTensor> tensors_;
  std::vector<uint32_t> order_;  // indices sorted by name
  std::map<std::string, std::string> metadata_;
  std::vector<UnsupportedTensor> unsupported_;
};

// All tensors of `dir`: model.safetensors, or every shard that model.safetensors.index.json names. A tensor
// that the index promises and its shard does not hold, or that two shards hold, or a shard outside `dir`, is
// a UserError. Tensors of unsupported types are appended to `unsupported`; without it they are refused.
std::vector<NamedTensor> read_safetensors_dir(const std::string& dir,
                                              MappedFile::Mode mode = MappedFile::Mode::kMap,
                                              std::vector<UnsupportedTensor>* unsupported = nullptr);

// The weight_map of an index file: tensor name -> file name, each a plain name in the same folder.
std::map<std::string, std::string> parse_safetensors_index(std::string_view json, const std::string& name);

// Written atomically. Tensors must not be block formats.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace fathom
