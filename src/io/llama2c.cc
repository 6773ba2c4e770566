#include "io/llama2c.h"

#include <algorithm>
#include <cstring>

#include "base/format.h"
#include "io/byte_reader.h"
#include "tensor/memory.h"

namespace fathom {
namespace {

constexpr uint32_t kVersionedMagic = 0x616b3432;  // "ak42": files of export.py --version 1 and later
constexpr size_t kHeaderBytes = 7 * sizeof(int32_t);

struct Part {
  const char* name;  // nullptr: skipped
  Shape shape;
};

Llama2cHeader read_header(ByteReader& reader) {
  Llama2cHeader header;
  int32_t* fields[] = {&header.dim,        &header.hidden_dim, &header.n_layers, &header.n_heads,
                       &header.n_kv_heads, &header.vocab_size, &header.seq_len};
  for (int32_t* field : fields) *field = reader.read<int32_t>("the header of 7 integers");
  return header;
}

void check_header(const Llama2cHeader& h, const std::string& where) {
  const struct {
    const char* name;
    int32_t value;
  } positive[] = {{"dim", h.dim},         {"hidden_dim", h.hidden_dim}, {"n_layers", h.n_layers},
                  {"n_heads", h.n_heads}, {"n_kv_heads", h.n_kv_heads}, {"seq_len", h.seq_len}};
  for (const auto& field : positive) {
    if (field.value < 1) fail("{}: {} must be at least 1, got {}", where, field.name, field.value);
  }
  if (h.vocab_size == 0 || h.vocab_size == INT32_MIN)
    fail("{}: vocab_size must not be {}", where, h.vocab_size);
  if (h.dim % h.n_heads != 0) fail("{}: dim {} is not a multiple of n_heads {}", where, h.dim, h.n_heads);
  if (h.n_heads % h.n_kv_heads != 0)
    fail("{}: n_heads {} is not a multiple of n_kv_heads {}", where, h.n_heads, h.n_kv_heads);
  if (h.head_dim() % 2 != 0)
    fail("{}: dim / n_heads must be even for the rotary pairs, got {}", where, h.head_dim());
}

std::vector<Part> parts_of(const Llama2cHeader& h) {
  std::vector<Part> parts{
      {"token_embedding", {h.vocab(), h.dim}},
      {"attention_norm", {h.n_layers, h.dim}},
      {"wq", {h.n_layers, h.dim, h.dim}},
      {"wk", {h.n_layers, h.kv_dim(), h.dim}},
      {"wv", {h.n_layers, h.kv_dim(), h.dim}},
      {"wo", {h.n_layers, h.dim, h.dim}},
      {"ffn_norm", {h.n_layers, h.dim}},
      {"w1", {h.n_layers, h.hidden_dim, h.dim}},
      {"w2", {h.n_layers, h.dim, h.hidden_dim}},
      {"w3", {h.n_layers, h.hidden_dim, h.dim}},
      {"final_norm", {h.dim}},
      {nullptr, {h.seq_len, h.head_dim() / 2}},  // cosines, now computed
      {nullptr, {h.seq_len, h.head_dim() / 2}},  // sines
  };
  if (!h.tied()) parts.push_back({"output", {h.vocab(), h.dim}});
  return parts;
}

// Bytes of the whole file; false when they pass 2^63.
bool file_bytes(const Llama2cHeader& header, int64_t* total) {
  *total = kHeaderBytes;
  for (const Part& part : parts_of(header)) {
    int64_t bytes = sizeof(float);
    for (int i = 0; i < part.shape.rank(); ++i) {
      if (__builtin_mul_overflow(bytes, part.shape[i], &bytes)) return false;
    }
    if (__builtin_add_overflow(*total, bytes, total)) return false;
  }
  return true;
}

}  // namespace

std::shared_ptr<const Llama2cFile> Llama2cFile::open(const std::string& path, MappedFile::Mode mode) {
  auto file = MappedFile::open(path, mode);
  const auto bytes = file->bytes();
  return parse(bytes, std::move(file), path);
}

std::shared_ptr<const Llama2cFile> Llama2cFile::parse(std::span<const std::byte> bytes,
                                                      std::shared_ptr<const void> owner,
                                                      const std::string& name) {
  const std::string where = printable(name) + ": llama2.c";
  if (reinterpret_cast<uintptr_t>(bytes.data()) % alignof(float) != 0) {
    std::shared_ptr<void> copy = allocate(Device::kCpu, bytes.size());
    std::copy(bytes.begin(), bytes.end(), static_cast<std::byte*>(copy.get()));
    bytes = {static_cast<const std::byte*>(copy.get()), bytes.size()};
    owner = std::move(copy);
  }
  ByteReader reader(bytes, where);
  std::shared_ptr<Llama2cFile> file(new Llama2cFile);
  file->header_ = read_header(reader);
  const Llama2cHeader& header = file->header_;
  if (static_cast<uint32_t>(header.dim) == kVersionedMagic) {
    fail(
        "{}: a versioned checkpoint ('ak42', version {}), only the legacy form is read; export it with "
        "--version 0",
        where, header.hidden_dim);
  }
  check_header(header, where);
  int64_t expected = 0;
  if (!file_bytes(header, &expected)) fail("{}: the header asks for more than 2^63 bytes", where);
  if (static_cast<uint64_t>(expected) != bytes.size()) {
    fail("{}: the header asks for {} bytes, the file has {}", where, expected, bytes.size());
  }
  size_t at = kHeaderBytes;
  for (const Part& part : parts_of(header)) {
    const Tensor tensor = Tensor::view(Device::kCpu, bytes.data() + at, DType::kF32, part.shape, owner);
    at += static_cast<size_t>(tensor.nbytes());
    if (part.name) file->tensors_.push_back({part.name, tensor});
  }
  return file;
}

const Tensor& Llama2cFile::tensor(std::string_view name) const {
  for (const NamedTensor& entry : tensors_) {
    if (entry.name == name) return entry.tensor;
  }
  throw std::logic_error("Llama2cFile::tensor: no part is named " + std::string(name));
}

bool looks_like_llama2c(std::span<const std::byte> start, uint64_t size) {
  if (start.size() < kHeaderBytes) return false;
  try {
    ByteReader reader(start, "");
    const Llama2cHeader header = read_header(reader);
    check_header(header, "");
    int64_t expected = 0;
    return file_bytes(header, &expected) && static_cast<uint64_t>(expected) == size;
  } catch (const UserError&) {
    return false;
  }
}

}  // namespace fathom
