#include "io/gguf_parser.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/format.h"
#include "io/byte_reader.h"
#include "io/ggml_type.h"

namespace fathom {
namespace {

// Far above any real file (a vocabulary is some 10^5 entries) and small enough that widening to 64 bits
// cannot hurt.
constexpr uint64_t kMaxArrayElements = uint64_t{1} << 24;
constexpr uint64_t kMaxEntries = uint64_t{1} << 24;  // keys, tensors
constexpr uint32_t kTypes = 13;

// The least bytes an entry can have: what a count in the header may at most promise.
constexpr uint64_t kLeastKeyBytes = 8 + 1 + 4 + 1;  // length, one letter, type, one byte
constexpr uint64_t kLeastTensorBytes =
    8 + 1 + 4 + 8 + 4 + 8;                 // length, one letter, rank, one dim, type, offset
constexpr uint64_t kLeastStringBytes = 8;  // an empty one

template <class T>
struct Tag {
  using Type = T;
};

// Calls fn with the C++ type of a scalar.
template <class Fn>
auto with_scalar(GgufType type, Fn&& fn) {
  switch (type) {
    case GgufType::kU8:
      return fn(Tag<uint8_t>{});
    case GgufType::kI8:
      return fn(Tag<int8_t>{});
    case GgufType::kU16:
      return fn(Tag<uint16_t>{});
    case GgufType::kI16:
      return fn(Tag<int16_t>{});
    case GgufType::kU32:
      return fn(Tag<uint32_t>{});
    case GgufType::kI32:
      return fn(Tag<int32_t>{});
    case GgufType::kF32:
      return fn(Tag<float>{});
    case GgufType::kBool:
      return fn(Tag<bool>{});
    case GgufType::kU64:
      return fn(Tag<uint64_t>{});
    case GgufType::kI64:
      return fn(Tag<int64_t>{});
    case GgufType::kF64:
      return fn(Tag<double>{});
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  throw std::logic_error("with_scalar: not a scalar type");
}

template <class T>
using Wide = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;

// Indices sorted by name; two equal names are refused. `kind` is "key" or "tensor".
template <class Item, class NameOf>
std::vector<uint32_t> sorted_by_name(const std::vector<Item>& items, NameOf name, const std::string& where,
                                     const char* kind) {
  std::vector<uint32_t> order(items.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return name(items[a]) < name(items[b]); });
  const auto same = [&](uint32_t a, uint32_t b) { return name(items[a]) == name(items[b]); };
  const auto twice = std::adjacent_find(order.begin(), order.end(), same);
  if (twice != order.end())
    fail("{}: the {} '{}' is there twice", where, kind, printable(name(items[*twice])));
  return order;
}

class Parser {
 public:
  Parser(std::span<const std::byte> bytes, const std::string& where) : bytes_(bytes), reader_(bytes, where) {}

  GgufContents parse() {
    read_magic();
    out_.version = read_version();
    const uint64_t n_tensors = reader_.read<uint64_t>("the number of tensors");
    const uint64_t n_keys = reader_.read<uint64_t>("the number of keys");
    expect_room(n_keys, kLeastKeyBytes, kMaxEntries, "keys");
    expect_room(n_tensors, kLeastTensorBytes, kMaxEntries, "tensors");
    for (uint64_t i = 0; i < n_keys; ++i) read_key_value();
    out_.key_order = sorted_by_name(
        out_.metadata, [](const GgufKeyValue& kv) -> auto& { return kv.key; }, where(), "key");
    read_alignment();
    refuse_split();
    for (uint64_t i = 0; i < n_tensors; ++i) read_tensor_info();
    out_.tensor_order = sorted_by_name(
        out_.tensors, [](const GgufTensorInfo& info) -> auto& { return info.name; }, where(), "tensor");
    lay_out();
    return std::move(out_);
  }

 private:
  const std::string& where() const { return reader_.where(); }

  void read_magic() {
    if (reader_.left() < 4)
      fail("{}: expected the magic 'GGUF', the file has {} bytes", where(), reader_.left());
    const std::string_view magic = reader_.read_bytes(4, "the magic");
    if (magic == "FUGG") fail("{}: this is a big-endian file; only little-endian ones are read", where());
    if (magic != "GGUF") fail("{}: expected the magic 'GGUF', got '{}'", where(), printable(magic));
  }

  uint32_t read_version() {
    const auto version = reader_.read<uint32_t>("the version");
    if (version == 2 || version == 3) return version;
    if (version != 0 && (version & 0xFFFF) == 0) {
      fail("{}: this is a big-endian file (version {:#010x}); only little-endian ones are read", where(),
           version);
    }
    if (version == 1)
      fail("{}: version 1 is not read, only 2 and 3; convert the model again with a newer tool", where());
    fail("{}: expected version 2 or 3, got {}", where(), version);
  }

  // Before anything is allocated: `count` things of at least `least` bytes must fit in what is left.
  void expect_room(uint64_t count, uint64_t least, uint64_t most, const char* things) const {
    if (count > reader_.left() / least) {
      fail("{}: {} {} need at least {} bytes each, {} bytes are left", where(), count, things, least,
           reader_.left());
    }
    if (count > most) fail("{}: {} {}, more than the {} that are read at most", where(), count, things, most);
  }

  std::string_view read_string(const char* what) {
    const auto length = reader_.read<uint64_t>(what);
    return reader_.read_bytes(length, what);
  }

  void read_key_value() {
    const std::string_view key = read_string("a key");
    if (key.empty()) fail("{}: key number {} is empty", where(), out_.metadata.size());
    if (key.size() > kGgufMaxKeyBytes) {
      fail("{}: the key '{}' has {} bytes, more than {}", where(), printable(key, 40), key.size(),
           kGgufMaxKeyBytes);
    }
    key_ = key;
    const GgufType type = read_type();
    out_.metadata.push_back({std::string(key), {type, {}}});
    auto& value = out_.metadata.back().value.value;
    if (type == GgufType::kArray) {
      value = read_array();
    } else if (type == GgufType::kString) {
      value = std::string(read_string("a string"));
    } else {
      with_scalar(type, [&](auto tag) { value = read_scalar<typename decltype(tag)::Type>(); });
    }
  }

  GgufType read_type() {
    const auto type = reader_.read<uint32_t>("a value's type");
    if (type >= kTypes)
      fail("{}: the key '{}' has type {}, expected 0 to {}", where(), printable(key_), type, kTypes - 1);
    return static_cast<GgufType>(type);
  }

  template <class T>
  Wide<T> read_scalar() {
    if constexpr (std::is_same_v<T, bool>) {
      const auto value = reader_.read<uint8_t>("a boolean");
      if (value > 1)
        fail("{}: the key '{}': a boolean must be 0 or 1, got {}", where(), printable(key_), value);
      return value;
    } else {
      return static_cast<Wide<T>>(reader_.read<T>("a value"));
    }
  }

  GgufArray read_array() {
    GgufArray array{.type = read_type(), .values = {}};
    if (array.type == GgufType::kArray) {
      fail("{}: the key '{}' is an array of arrays, which is not read", where(), printable(key_));
    }
    const auto count = reader_.read<uint64_t>("an array's length");
    if (array.type == GgufType::kString) {
      expect_array_room(count, kLeastStringBytes);
      std::vector<std::string> strings;
      strings.reserve(count);
      for (uint64_t i = 0; i < count; ++i) strings.emplace_back(read_string("a string of an array"));
      array.values = std::move(strings);
      return array;
    }
    with_scalar(array.type, [&](auto tag) {
      using T = typename decltype(tag)::Type;
      expect_array_room(count, sizeof(T));
      std::vector<Wide<T>> values;
      values.reserve(count);
      for (uint64_t i = 0; i < count; ++i) values.push_back(read_scalar<T>());
      array.values = std::move(values);
    });
    return array;
  }

  void expect_array_room(uint64_t count, uint64_t least) const {
    if (count > reader_.left() / least) {
      fail("{}: the key '{}' is an array of {} elements of at least {} bytes, {} bytes are left", where(),
           printable(key_), count, least, reader_.left());
    }
    if (count > kMaxArrayElements) {
      fail("{}: the key '{}' is an array of {} elements, more than the {} that are read at most", where(),
           printable(key_), count, kMaxArrayElements);
    }
  }

  const GgufValue* find(std::string_view key) const {
    for (const GgufKeyValue& kv : out_.metadata) {
      if (kv.key == key) return &kv.value;
    }
    return nullptr;
  }

  void read_alignment() {
    const GgufValue* value = find("general.alignment");
    if (!value) return;
    if (value->type != GgufType::kU32) {
      fail("{}: general.alignment must be u32, got {}", where(), name_of(value->type));
    }
    alignment_ = static_cast<uint64_t>(std::get<int64_t>(value->value));
    if (!std::has_single_bit(alignment_) || alignment_ < 8) {
      fail("{}: general.alignment must be a power of two, at least 8, got {}", where(), alignment_);
    }
  }

  void refuse_split() const {
    const GgufValue* value = find("split.count");
    const int64_t* count = value ? std::get_if<int64_t>(&value->value) : nullptr;
    if (!count || *count <= 1) return;
    fail(
        "{}: this is one part of a model split into {} files; join them first: llama-gguf-split --merge "
        "FIRST-PART OUT.gguf",
        where(), *count);
  }

  void read_tensor_info() {
    GgufTensorInfo info;
    info.name = read_string("a tensor's name");
    if (info.name.empty()) fail("{}: tensor number {} has no name", where(), out_.tensors.size());
    if (info.name.size() > kGgufMaxTensorNameBytes) {
      fail("{}: the tensor name '{}' has {} bytes, more than {}", where(), printable(info.name, 80),
           info.name.size(), kGgufMaxTensorNameBytes);
    }
    info.shape = read_shape(info.name);
    const auto type = reader_.read<uint32_t>("a tensor's type");
    if (!dtype_of_ggml_id(type, &info.dtype)) refuse_type(info.name, type);
    info.offset = reader_.read<uint64_t>("a tensor's offset");
    out_.tensors.push_back(std::move(info));
  }

  [[noreturn]] void refuse_type(const std::string& name, uint32_t type) const {
    const std::string type_name = ggml_type_name(type);
    if (type_name.empty())
      fail("{}: tensor '{}' has type {}, which no version of the format knows", where(), printable(name),
           type);
    fail("{}: tensor '{}' has type {}, which fathom does not read; supported: {}", where(), printable(name),
         type_name, supported_ggml_types());
  }

  // Dims are stored innermost first. Their product must fit 63 bits, so that nothing that multiplies them
  // later overflows.
  Shape read_shape(const std::string& name) {
    const auto rank = reader_.read<uint32_t>("a tensor's number of dimensions");
    if (rank < 1 || rank > Shape::kMaxRank) {
      fail("{}: tensor '{}' has {} dimensions, expected 1 to {}", where(), printable(name), rank,
           Shape::kMaxRank);
    }
    int64_t dims[Shape::kMaxRank];
    int64_t elements = 1;
    for (uint32_t i = 0; i < rank; ++i) {
      dims[i] = reader_.read<int64_t>("a tensor's dimensions");
      if (dims[i] <= 0)
        fail("{}: tensor '{}' has a dimension {}, expected at least 1", where(), printable(name), dims[i]);
      if (__builtin_mul_overflow(elements, dims[i], &elements)) {
        fail("{}: tensor '{}' has more than 2^63 elements", where(), printable(name));
      }
    }
    Shape shape;
    for (uint32_t i = rank; i-- > 0;) shape.push_back(dims[i]);
    return shape;
  }

  uint64_t bytes_of(const GgufTensorInfo& info) const {
    const DTypeTraits& format = traits(info.dtype);
    const int64_t row = info.shape.last();
    if (row % format.block != 0) {
      fail("{}: tensor '{}' has rows of {} elements, not whole blocks of {} ({} per block)", where(),
           printable(info.name), row, format.name, format.block);
    }
    int64_t bytes = 0;
    if (__builtin_mul_overflow(info.shape.numel() / format.block, format.block_bytes, &bytes)) {
      fail("{}: tensor '{}' has more than 2^63 bytes", where(), printable(info.name));
    }
    return static_cast<uint64_t>(bytes);
  }

  // The tensors must lie one after the other, in the order of their entries, each at the next multiple of the
  // alignment: so do all writers, and overlaps and holes are then impossible.
  void lay_out() {
    uint64_t begin = 0;
    if (!align_up(reader_.position(), alignment_, &begin) || begin > bytes_.size()) {
      if (!out_.tensors.empty()) {
        fail("{}: truncated: the data of {} tensors should start at byte {}, the file has {} bytes", where(),
             out_.tensors.size(), begin, bytes_.size());
      }
      begin = bytes_.size();
    }
    out_.data_begin = begin;
    const uint64_t available = bytes_.size() - begin;
    uint64_t expected = 0;
    for (const GgufTensorInfo& info : out_.tensors) {
      const uint64_t size = bytes_of(info);
      if (info.offset % alignment_ != 0) {
        fail("{}: tensor '{}' has offset {}, not a multiple of the alignment {}", where(),
             printable(info.name), info.offset, alignment_);
      }
      if (info.offset != expected) {
        fail("{}: tensor '{}' has offset {}, expected {} (tensors lie one after the other)", where(),
             printable(info.name), info.offset, expected);
      }
      if (info.offset > available || size > available - info.offset) {
        fail("{}: tensor '{}' needs {} bytes at offset {}, the file has {} bytes of data", where(),
             printable(info.name), size, info.offset, available);
      }
      // Inside the file, so the sum is small; the alignment is below 2^32.
      align_up(info.offset + size, alignment_, &expected);
    }
  }

  std::span<const std::byte> bytes_;
  ByteReader reader_;
  GgufContents out_;
  std::string_view key_;  // of the value being read, for messages
  uint64_t alignment_ = kGgufDefaultAlignment;
};

}  // namespace

GgufContents parse_gguf(std::span<const std::byte> bytes, const std::string& where) {
  return Parser(bytes, where).parse();
}

const char* name_of(GgufType type) {
  static constexpr const char* kNames[kTypes] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                 "bool", "string", "array", "u64", "i64", "f64"};
  return kNames[static_cast<uint32_t>(type)];
}

}  // namespace fathom
