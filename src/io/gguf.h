// GGUF v2 and v3: named tensors and typed metadata. Knows no model. Every length and offset is checked
// against the file before it is used or allocated.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/mapped_file.h"
#include "tensor/named_tensor.h"

namespace fathom {

// Type ids as in the file.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

struct GgufArray {
  GgufType type = GgufType::kU8;  // of the elements; arrays of arrays are refused
  // Integers and booleans widened to int64, floats to double; strings as they are.
  std::variant<std::vector<int64_t>, std::vector<double>, std::vector<std::string>> values;

  bool operator==(const GgufArray&) const = default;
};

struct GgufValue {
  GgufType type = GgufType::kU8;  // as stored, so that a rewrite is lossless
  // U64 above INT64_MAX: kept as its bit pattern.
  std::variant<int64_t, double, std::string, GgufArray> value;

  bool operator==(const GgufValue&) const = default;
};

struct GgufKeyValue {
  std::string key;
  GgufValue value;

  bool operator==(const GgufKeyValue&) const = default;
};

struct GgufTensorInfo {
  std::string name;
  Shape shape;  // outermost first (the file stores it innermost first)
  DType dtype = DType::kF32;
  uint64_t offset = 0;  // from the start of the data section
};

class GgufFile {
 public:
  // Throws UserError "FILE: gguf: …" on anything the format does not allow.
  static std::shared_ptr<const GgufFile> open(const std::string& path,
                                              MappedFile::Mode mode = MappedFile::Mode::kMap);
  // The same over bytes in memory (fuzzing, tests); `owner` keeps them alive.
  static std::shared_ptr<const GgufFile> parse(std::span<const std::byte> bytes,
                                               std::shared_ptr<const void> owner, const std::string& name);

  uint32_t version() const { return version_; }
  const std::string& path() const { return path_; }
  const std::vector<GgufKeyValue>& metadata() const { return metadata_; }  // in file order
  const std::vector<GgufTensorInfo>& tensors() const { return tensors_; }  // in file order

  const GgufValue* find(std::string_view key) const;
  const GgufTensorInfo* find_tensor(std::string_view name) const;
  Tensor tensor(const GgufTensorInfo& info) const;  // a view of the mapping

  // Typed access. The two-argument forms return `fallback` when the key is absent; a wrong type is a
  // UserError.
  int64_t integer(std::string_view key) const;
  int64_t integer(std::string_view key, int64_t fallback) const;
  double number(std::string_view key) const;
  double number(std::string_view key, double fallback) const;
  bool boolean(std::string_view key, bool fallback) const;
  std::string string(std::string_view key) const;
  std::string string(std::string_view key, std::string_view fallback) const;
  const GgufArray* array(std::string_view key) const;  // nullptr when absent

 private:
  std::string path_;
  uint32_t version_ = 0;
  std::vector<GgufKeyValue> metadata_;
  std::vector<GgufTensorInfo> tensors_;
  std::vector<uint32_t> key_order_, tensor_order_;  // indices sorted by name
  std::span<const std::byte> data_;                 // the data section
  std::shared_ptr<const void> owner_;
};

// Writes version 3, alignment 32, atomically. Tensors keep their dtype.
void write_gguf(const std::string& path, const std::vector<GgufKeyValue>& metadata,
                const std::vector<NamedTensor>& tensors);

}  // namespace fathom
