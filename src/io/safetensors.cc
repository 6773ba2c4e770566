#include "io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/format.h"
#include "io/json_stream.h"
#include "tensor/memory.h"

namespace fathom {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
constexpr size_t kMaxDims = 32;
constexpr int kHeaderDepth = 3;  // header, tensor, its arrays

struct DTypeRow {
  std::string_view name;
  uint64_t bits;
  bool supported;
  DType dtype;
};
constexpr DTypeRow kDTypeRows[] = {
    {"F32", 32, true, DType::kF32},    {"F16", 16, true, DType::kF16},    {"BF16", 16, true, DType::kBF16},
    {"I32", 32, true, DType::kI32},    {"U8", 8, true, DType::kU8},       {"BOOL", 8, false, DType::kU8},
    {"I8", 8, false, DType::kU8},      {"I16", 16, false, DType::kU8},    {"U16", 16, false, DType::kU8},
    {"U32", 32, false, DType::kU8},    {"I64", 64, false, DType::kU8},    {"U64", 64, false, DType::kU8},
    {"F64", 64, false, DType::kU8},    {"C64", 64, false, DType::kU8},    {"F8_E4M3", 8, false, DType::kU8},
    {"F8_E5M2", 8, false, DType::kU8}, {"F8_E8M0", 8, false, DType::kU8}, {"F4", 4, false, DType::kU8},
    {"F6_E2M3", 6, false, DType::kU8}, {"F6_E3M2", 6, false, DType::kU8},
};

// A tensor as the header gives it.
struct Entry {
  std::string name, dtype;
  std::vector<uint64_t> dims;
  std::vector<uint64_t> offsets;  // begin, end
  bool has_dtype = false, has_dims = false, has_offsets = false;
};

class HeaderReader : public JsonEvents {
 public:
  explicit HeaderReader(const std::string& where) : where_(where) {}

  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;

  void begin_object() override {
    if (state_ == State::kStart) {
      state_ = State::kTop;
    } else if (state_ == State::kTop && key_ == "__metadata__") {
      state_ = State::kMetadata;
    } else if (state_ == State::kTop) {
      entries.emplace_back().name = key_;
      state_ = State::kTensor;
    } else {
      refuse("an object");
    }
  }

  void end_object() override {
    if (state_ == State::kTensor) {
      const Entry& entry = entries.back();
      if (!entry.has_dtype) fail("{}: tensor '{}' has no dtype", where_, printable(entry.name));
      if (!entry.has_dims) fail("{}: tensor '{}' has no shape", where_, printable(entry.name));
      if (!entry.has_offsets) fail("{}: tensor '{}' has no data_offsets", where_, printable(entry.name));
    }
    state_ = state_ == State::kTop ? State::kStart : State::kTop;
  }

  void begin_array() override {
    if (state_ != State::kTensor || (key_ != "shape" && key_ != "data_offsets")) refuse("an array");
    state_ = key_ == "shape" ? State::kShape : State::kOffsets;
  }

  void end_array() override {
    Entry& entry = entries.back();
    if (state_ == State::kShape) {
      entry.has_dims = true;
    } else {
      if (entry.offsets.size() != 2) refuse(fmt::format("{} numbers", entry.offsets.size()));
      entry.has_offsets = true;
    }
    state_ = State::kTensor;
  }

  void key(std::string name) override {
    key_ = std::move(name);
    if (state_ != State::kTensor || key_ == "dtype" || key_ == "shape" || key_ == "data_offsets") return;
    fail("{}: tensor '{}' has a field '{}'; expected dtype, shape and data_offsets", where_,
         printable(entries.back().name), printable(key_));
  }

  void string(std::string text) override {
    if (state_ == State::kMetadata) {
      metadata.emplace(std::move(key_), std::move(text));
    } else if (state_ == State::kTensor && key_ == "dtype") {
      entries.back().dtype = std::move(text);
      entries.back().has_dtype = true;
    } else {
      refuse("a string");
    }
  }

  void whole_number(uint64_t value) override {
    if (state_ == State::kShape) {
      auto& dims = entries.back().dims;
      if (dims.size() == kMaxDims)
        fail("{}: tensor '{}' has more than {} dimensions", where_, printable(entries.back().name), kMaxDims);
      dims.push_back(value);
    } else if (state_ == State::kOffsets) {
      if (entries.back().offsets.size() == 2) refuse("more than two numbers");
      entries.back().offsets.push_back(value);
    } else {
      refuse(fmt::format("{}", value));
    }
  }

  void other(const std::string& what) override { refuse(what); }

 private:
  enum class State { kStart, kTop, kTensor, kShape, kOffsets, kMetadata };

  [[noreturn]] void refuse(const std::string& got) const {
    const auto fail_value = [&](const std::string& thing, const char* expected) {
      fail("{}: {} must be {}, got {}", where_, thing, expected, printable(got, 40));
    };
    if (state_ == State::kStart) fail_value("the header", "an object");
    if (state_ == State::kTop && key_ == "__metadata__") fail_value("__metadata__", "an object");
    if (state_ == State::kTop) fail_value(fmt::format("tensor '{}'", printable(key_)), "an object");
    if (state_ == State::kMetadata) fail_value(fmt::format("__metadata__ '{}'", printable(key_)), "a string");
    const std::string field = fmt::format("{} of tensor '{}'", key_, printable(entries.back().name));
    if (key_ == "dtype") fail_value(field, "a string");
    if (key_ == "shape") fail_value(field, "an array of whole numbers");
    fail_value(field, "an array of two whole numbers");
    __builtin_unreachable();
  }

  const std::string& where_;
  State state_ = State::kStart;
  std::string key_;
};

const DTypeRow& dtype_row(const Entry& entry, const std::string& where) {
  for (const DTypeRow& row : kDTypeRows) {
    if (row.name == entry.dtype) return row;
  }
  fail("{}: tensor '{}' has the unknown dtype '{}'", where, printable(entry.name),
       printable(entry.dtype, 40));
}

// The span that shape and dtype need must be the span that the offsets give. Zero dims count as one in the
// overflow check: strides are products of the other dims.
void check_span(const Entry& entry, const DTypeRow& row, const std::string& where) {
  const uint64_t begin = entry.offsets[0], end = entry.offsets[1];
  if (begin > end)
    fail("{}: data_offsets of tensor '{}' are inverted: [{}, {}]", where, printable(entry.name), begin, end);
  int64_t bits = static_cast<int64_t>(row.bits);
  bool empty = false;
  for (const uint64_t dim : entry.dims) {
    empty = empty || dim == 0;
    if (__builtin_mul_overflow(bits, std::max<uint64_t>(dim, 1), &bits)) {
      fail("{}: the shape of tensor '{}' has more than 2^63 bits", where, printable(entry.name));
    }
  }
  if (empty) bits = 0;
  if (bits % 8 != 0) fail("{}: tensor '{}' does not fill whole bytes", where, printable(entry.name));
  const uint64_t needed = static_cast<uint64_t>(bits) / 8;
  if (needed != end - begin) {
    fail("{}: tensor '{}' ({} {}) needs {} bytes, data_offsets give {}", where, printable(entry.name),
         entry.dtype, fmt::join(entry.dims, "x"), needed, end - begin);
  }
}

// Sorted by offset, the tensors must cover the data section exactly: no overlap, no hole, nothing after.
void check_cover(const std::vector<Entry>& entries, uint64_t data_bytes, const std::string& where) {
  uint64_t covered = 0;
  for (const Entry& entry : entries) {
    const uint64_t begin = entry.offsets[0], end = entry.offsets[1];
    if (end > data_bytes) {
      fail("{}: tensor '{}' ends at byte {} of the data, past its end at {}", where, printable(entry.name),
           end, data_bytes);
    }
    if (begin < covered) fail("{}: tensor '{}' overlaps the one before it", where, printable(entry.name));
    if (begin > covered) {
      fail("{}: a hole of {} bytes before tensor '{}'", where, begin - covered, printable(entry.name));
    }
    covered = end;
  }
  if (covered != data_bytes) fail("{}: {} trailing bytes after the last tensor", where, data_bytes - covered);
}

Tensor make_tensor(const Entry& entry, DType dtype, const std::byte* data,
                   const std::shared_ptr<const void>& owner) {
  Shape shape;
  for (const uint64_t dim : entry.dims) shape.push_back(static_cast<int64_t>(dim));
  const size_t size = entry.offsets[1] - entry.offsets[0];
  // The format does not ask for alignment; our kernels do.
  const auto alignment = static_cast<uintptr_t>(traits(dtype).block_bytes);
  if (size == 0 || reinterpret_cast<uintptr_t>(data) % alignment == 0) {
    return Tensor::view(Device::kCpu, data, dtype, shape, owner);
  }
  Tensor copy = Tensor::owned(Device::kCpu, dtype, shape);
  std::memcpy(copy.raw(), data, size);
  return copy;
}

std::string_view header_text(std::span<const std::byte> bytes, const std::string& where) {
  if (bytes.size() < 8) fail("{}: expected at least 8 bytes, the file has {}", where, bytes.size());
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  if (length > kMaxHeaderBytes)
    fail("{}: the header has {} bytes, more than the {} allowed", where, length, kMaxHeaderBytes);
  if (length > bytes.size() - 8) {
    fail("{}: the header has {} bytes, {} are left in the file", where, length, bytes.size() - 8);
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, length);
  if (text.empty() || text[0] != '{')
    fail("{}: the header must start with '{{', got '{}'", where, printable(text.substr(0, 1)));
  return text;
}

}  // namespace

std::shared_ptr<const SafetensorsFile> SafetensorsFile::open(const std::string& path, MappedFile::Mode mode) {
  const auto file = MappedFile::open(path, mode);
  return parse(file->bytes(), file, path);
}

std::shared_ptr<const SafetensorsFile> SafetensorsFile::parse(std::span<const std::byte> bytes,
                                                              const std::shared_ptr<const void>& owner,
                                                              const std::string& name) {
  const std::string where = printable(name) + ": safetensors";
  const std::string_view text = header_text(bytes, where);
  HeaderReader header(where);
  parse_json(text, kHeaderDepth, where, header);
  for (const Entry& entry : header.entries) check_span(entry, dtype_row(entry, where), where);
  std::stable_sort(header.entries.begin(), header.entries.end(),
                   [](const Entry& a, const Entry& b) { return a.offsets < b.offsets; });
  const auto data = bytes.subspan(8 + text.size());
  check_cover(header.entries, data.size(), where);

  std::shared_ptr<SafetensorsFile> file(new SafetensorsFile);
  file->metadata_ = std::move(header.metadata);
  for (const Entry& entry : header.entries) {
    const DTypeRow& row = dtype_row(entry, where);
    if (!row.supported) {
      file->unsupported_.push_back({entry.name, "dtype " + entry.dtype});
    } else if (entry.dims.size() > Shape::kMaxRank) {
      file->unsupported_.push_back({entry.name, fmt::format("{} dimensions", entry.dims.size())});
    } else {
      file->tensors_.push_back(
          {entry.name, make_tensor(entry, row.dtype, data.data() + entry.offsets[0], owner)});
    }
  }
  const auto& tensors = file->tensors_;
  file->order_.resize(tensors.size());
  std::iota(file->order_.begin(), file->order_.end(), 0u);
  std::sort(file->order_.begin(), file->order_.end(),
            [&](uint32_t a, uint32_t b) { return tensors[a].name < tensors[b].name; });
  return file;
}

const Tensor* SafetensorsFile::find(std::string_view name) const {
  const auto at =
      std::lower_bound(order_.begin(), order_.end(), name,
                       [&](uint32_t i, std::string_view wanted) { return tensors_[i].name < wanted; });
  if (at == order_.end() || tensors_[*at].name != name) return nullptr;
  return &tensors_[*at].tensor;
}

}  // namespace fathom
