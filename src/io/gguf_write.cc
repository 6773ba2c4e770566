#include <cstring>
#include <set>

#include "base/format.h"
#include "io/atomic_file.h"
#include "io/byte_reader.h"
#include "io/gguf.h"
#include "io/gguf_parser.h"

namespace fathom {
namespace {

constexpr size_t kLongestReadableName =
    kGgufMaxTensorNameBytes - 1;  // llama.cpp keeps a terminating zero in its 64 bytes

template <class T>
void put(AtomicFile& file, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  file.write(std::string_view(bytes, sizeof(T)));
}

void put_string(AtomicFile& file, std::string_view text) {
  put<uint64_t>(file, text.size());
  file.write(text);
}

void put_scalar(AtomicFile& file, GgufType type, int64_t value) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return put(file, static_cast<uint8_t>(value));
    case GgufType::kU16:
    case GgufType::kI16:
      return put(file, static_cast<uint16_t>(value));
    case GgufType::kU32:
    case GgufType::kI32:
      return put(file, static_cast<uint32_t>(value));
    default:
      return put(file, value);
  }
}

void put_scalar(AtomicFile& file, GgufType type, double value) {
  if (type == GgufType::kF32) return put(file, static_cast<float>(value));
  put(file, value);
}

void put_scalar(AtomicFile& file, GgufType, const std::string& value) {
  put_string(file, value);
}

bool is_float(GgufType type) {
  return type == GgufType::kF32 || type == GgufType::kF64;
}

template <class T>
bool holds(GgufType type) {
  if (type == GgufType::kArray) return false;
  if (type == GgufType::kString) return std::is_same_v<T, std::string>;
  return is_float(type) ? std::is_same_v<T, double> : std::is_same_v<T, int64_t>;
}

// A program error, not a user's: the value does not have the type it claims.
[[noreturn]] void fail_mismatch(const std::string& key, GgufType type) {
  throw std::logic_error(fmt::format("write_gguf: the value of '{}' is not a {}", key, name_of(type)));
}

void put_value(AtomicFile& file, const GgufKeyValue& kv) {
  const GgufType type = kv.value.type;
  put(file, static_cast<uint32_t>(type));
  if (const auto* array = std::get_if<GgufArray>(&kv.value.value)) {
    if (type != GgufType::kArray) fail_mismatch(kv.key, type);
    put(file, static_cast<uint32_t>(array->type));
    std::visit(
        [&](const auto& values) {
          using T = typename std::decay_t<decltype(values)>::value_type;
          if (!holds<T>(array->type)) fail_mismatch(kv.key, array->type);
          put<uint64_t>(file, values.size());
          for (const T& value : values) put_scalar(file, array->type, value);
        },
        array->values);
    return;
  }
  std::visit(
      [&](const auto& value) {
        using T = std::decay_t<decltype(value)>;
        if constexpr (!std::is_same_v<T, GgufArray>) {
          if (!holds<T>(type)) fail_mismatch(kv.key, type);
          put_scalar(file, type, value);
        }
      },
      kv.value.value);
}

void check_keys(const std::string& path, const std::vector<const GgufKeyValue*>& metadata) {
  std::set<std::string_view> keys;
  for (const GgufKeyValue* kv : metadata) {
    if (kv->key.empty() || kv->key.size() > kGgufMaxKeyBytes) {
      fail("{}: gguf: the key '{}' has {} bytes, expected 1 to {}", printable(path), printable(kv->key, 40),
           kv->key.size(), kGgufMaxKeyBytes);
    }
    if (!keys.insert(kv->key).second)
      fail("{}: gguf: the key '{}' is given twice", printable(path), printable(kv->key));
  }
}

void check_gguf_tensors(const std::string& path, const std::vector<NamedTensor>& tensors) {
  std::set<std::string_view> names;
  for (const NamedTensor& entry : tensors) {
    const Tensor& tensor = entry.tensor;
    const std::string where = fmt::format("{}: gguf: tensor '{}'", printable(path), printable(entry.name));
    if (entry.name.empty() || entry.name.size() > kLongestReadableName) {
      fail("{}: the name has {} bytes, expected 1 to {}", where, entry.name.size(), kLongestReadableName);
    }
    if (!names.insert(entry.name).second) fail("{} is given twice", where);
    if (traits(tensor.dtype()).ggml_type < 0)
      fail("{}: the format cannot store {}", where, name_of(tensor.dtype()));
    if (tensor.rank() < 1 || tensor.numel() < 1) {
      fail("{}: expected 1 to {} dimensions of at least 1, got {}", where, Shape::kMaxRank,
           to_string(tensor.shape()));
    }
    if (!tensor.defined() || tensor.device() != Device::kCpu || !tensor.is_contiguous()) {
      throw std::logic_error(where + " must be on the CPU and contiguous");
    }
  }
}

uint64_t padded(uint64_t size) {
  uint64_t aligned = 0;
  align_up(size, kGgufDefaultAlignment, &aligned);
  return aligned;
}

void pad(AtomicFile& file) {
  file.write_zeros(padded(file.written()) - file.written());
}

}  // namespace

void write_gguf(const std::string& path, const std::vector<GgufKeyValue>& metadata,
                const std::vector<NamedTensor>& tensors) {
  // The alignment is the writer's own: the default, which needs no key.
  std::vector<const GgufKeyValue*> kept;
  for (const GgufKeyValue& kv : metadata) {
    if (kv.key != "general.alignment") kept.push_back(&kv);
  }
  check_keys(path, kept);
  check_gguf_tensors(path, tensors);

  AtomicFile file(path);
  file.write("GGUF");
  put<uint32_t>(file, 3);
  put<uint64_t>(file, tensors.size());
  put<uint64_t>(file, kept.size());
  for (const GgufKeyValue* kv : kept) {
    put_string(file, kv->key);
    put_value(file, *kv);
  }
  uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    put_string(file, name);
    put<uint32_t>(file, static_cast<uint32_t>(tensor.rank()));
    for (int i = tensor.rank() - 1; i >= 0; --i) put<int64_t>(file, tensor.dim(i));  // innermost first
    put<uint32_t>(file, static_cast<uint32_t>(traits(tensor.dtype()).ggml_type));
    put<uint64_t>(file, offset);
    offset += padded(static_cast<uint64_t>(tensor.nbytes()));
  }
  pad(file);
  for (const auto& [name, tensor] : tensors) {
    file.write({static_cast<const std::byte*>(tensor.raw()), static_cast<size_t>(tensor.nbytes())});
    pad(file);
  }
  file.commit();
}

}  // namespace fathom
