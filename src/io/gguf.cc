#include "io/gguf.h"

#include <algorithm>

#include "base/format.h"
#include "io/gguf_parser.h"
#include "tensor/memory.h"

namespace fathom {
namespace {

// The tensors' alignment in the file is one in memory only when the file's first byte is aligned, as in a
// mapping.
constexpr uintptr_t kBaseAlignment = 16;

template <class Item, class NameOf>
const Item* find_by_name(const std::vector<Item>& items, const std::vector<uint32_t>& order,
                         std::string_view name, NameOf name_of) {
  const auto at =
      std::lower_bound(order.begin(), order.end(), name,
                       [&](uint32_t i, std::string_view wanted) { return name_of(items[i]) < wanted; });
  if (at == order.end() || name_of(items[*at]) != name) return nullptr;
  return &items[*at];
}

[[noreturn]] void fail_type(const std::string& path, std::string_view key, const char* expected,
                            const GgufValue& value) {
  fail("{}: gguf: {} must be {}, got {}", printable(path), printable(key), expected, name_of(value.type));
}

const GgufValue& present(const GgufValue* value, const std::string& path, std::string_view key) {
  if (!value) fail("{}: gguf: the key {} is missing", printable(path), printable(key));
  return *value;
}

int64_t as_integer(const GgufValue& value, const std::string& path, std::string_view key) {
  const int64_t* number = std::get_if<int64_t>(&value.value);
  if (!number || value.type == GgufType::kBool) fail_type(path, key, "a whole number", value);
  if (value.type == GgufType::kU64 && *number < 0) {
    fail("{}: gguf: {} is {}, more than 2^63", printable(path), printable(key),
         static_cast<uint64_t>(*number));
  }
  return *number;
}

double as_number(const GgufValue& value, const std::string& path, std::string_view key) {
  if (const double* number = std::get_if<double>(&value.value)) return *number;
  if (!std::holds_alternative<int64_t>(value.value) || value.type == GgufType::kBool)
    fail_type(path, key, "a number", value);
  return static_cast<double>(as_integer(value, path, key));
}

const std::string& as_string(const GgufValue& value, const std::string& path, std::string_view key) {
  const std::string* text = std::get_if<std::string>(&value.value);
  if (!text) fail_type(path, key, "a string", value);
  return *text;
}

}  // namespace

std::shared_ptr<const GgufFile> GgufFile::open(const std::string& path, MappedFile::Mode mode) {
  auto file = MappedFile::open(path, mode);
  const auto bytes = file->bytes();
  return parse(bytes, std::move(file), path);
}

std::shared_ptr<const GgufFile> GgufFile::parse(std::span<const std::byte> bytes,
                                                std::shared_ptr<const void> owner, const std::string& name) {
  if (reinterpret_cast<uintptr_t>(bytes.data()) % kBaseAlignment != 0) {
    std::shared_ptr<void> copy = allocate(Device::kCpu, bytes.size());
    std::copy(bytes.begin(), bytes.end(), static_cast<std::byte*>(copy.get()));
    bytes = {static_cast<const std::byte*>(copy.get()), bytes.size()};
    owner = std::move(copy);
  }
  GgufContents contents = parse_gguf(bytes, printable(name) + ": gguf");
  std::shared_ptr<GgufFile> file(new GgufFile);
  file->path_ = name;
  file->version_ = contents.version;
  file->metadata_ = std::move(contents.metadata);
  file->tensors_ = std::move(contents.tensors);
  file->key_order_ = std::move(contents.key_order);
  file->tensor_order_ = std::move(contents.tensor_order);
  file->data_ = bytes.subspan(contents.data_begin);
  file->owner_ = std::move(owner);
  return file;
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto* found = find_by_name(
      metadata_, key_order_, key, [](const GgufKeyValue& kv) -> auto& { return kv.key; });
  return found ? &found->value : nullptr;
}

const GgufTensorInfo* GgufFile::find_tensor(std::string_view name) const {
  return find_by_name(
      tensors_, tensor_order_, name, [](const GgufTensorInfo& info) -> auto& { return info.name; });
}

Tensor GgufFile::tensor(const GgufTensorInfo& info) const {
  return Tensor::view(Device::kCpu, data_.data() + info.offset, info.dtype, info.shape, owner_);
}

int64_t GgufFile::integer(std::string_view key) const {
  return as_integer(present(find(key), path_, key), path_, key);
}

int64_t GgufFile::integer(std::string_view key, int64_t fallback) const {
  const GgufValue* value = find(key);
  return value ? as_integer(*value, path_, key) : fallback;
}

double GgufFile::number(std::string_view key) const {
  return as_number(present(find(key), path_, key), path_, key);
}

double GgufFile::number(std::string_view key, double fallback) const {
  const GgufValue* value = find(key);
  return value ? as_number(*value, path_, key) : fallback;
}

bool GgufFile::boolean(std::string_view key, bool fallback) const {
  const GgufValue* value = find(key);
  if (!value) return fallback;
  if (value->type != GgufType::kBool) fail_type(path_, key, "a boolean", *value);
  return std::get<int64_t>(value->value) != 0;
}

std::string GgufFile::string(std::string_view key) const {
  return as_string(present(find(key), path_, key), path_, key);
}

std::string GgufFile::string(std::string_view key, std::string_view fallback) const {
  const GgufValue* value = find(key);
  return value ? as_string(*value, path_, key) : std::string(fallback);
}

const GgufArray* GgufFile::array(std::string_view key) const {
  const GgufValue* value = find(key);
  if (!value) return nullptr;
  const GgufArray* array = std::get_if<GgufArray>(&value->value);
  if (!array) fail_type(path_, key, "an array", *value);
  return array;
}

}  // namespace fathom
