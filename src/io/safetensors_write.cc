#include <algorithm>
#include <cstring>
#include <set>

#include "base/format.h"
#include "io/atomic_file.h"
#include "io/json_stream.h"
#include "io/safetensors.h"

namespace fathom {
namespace {

const char* format_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
    case DType::kI32:
      return "I32";
    case DType::kU8:
      return "U8";
    default:
      return nullptr;
  }
}

void check_tensors(const std::string& where, const std::vector<NamedTensor>& tensors) {
  std::set<std::string_view> names;
  for (const auto& [name, tensor] : tensors) {
    const std::string thing = fmt::format("{}: tensor '{}'", where, printable(name));
    if (name == "__metadata__") fail("{}: the name belongs to the format", thing);
    if (!names.insert(name).second) fail("{} is given twice", thing);
    if (!format_name(tensor.dtype())) fail("{}: the format cannot store {}", thing, name_of(tensor.dtype()));
    if (!tensor.defined() || tensor.device() != Device::kCpu || !tensor.is_contiguous()) {
      throw std::logic_error(thing + " must be on the CPU and contiguous");
    }
  }
}

std::string metadata_json(const std::string& where, const std::map<std::string, std::string>& metadata) {
  std::string json;
  for (const auto& [key, value] : metadata) {
    json += fmt::format("{}{}:{}", json.empty() ? "" : ",", quote_json(key, where), quote_json(value, where));
  }
  return fmt::format("\"__metadata__\":{{{}}}", json);
}

}  // namespace

void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::string where = printable(path) + ": safetensors";
  check_tensors(where, tensors);
  // Wide types first: with a header of whole 8 bytes every tensor is then aligned for its type.
  std::vector<const NamedTensor*> order;
  order.reserve(tensors.size());
  for (const NamedTensor& entry : tensors) order.push_back(&entry);
  std::stable_sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return traits(a->tensor.dtype()).block_bytes > traits(b->tensor.dtype()).block_bytes;
  });

  std::string header = "{";
  if (!metadata.empty()) header += metadata_json(where, metadata);
  int64_t offset = 0;
  for (const NamedTensor* entry : order) {
    const Tensor& tensor = entry->tensor;
    std::string dims;
    for (int i = 0; i < tensor.rank(); ++i) dims += fmt::format("{}{}", i ? "," : "", tensor.dim(i));
    header += fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          header.size() > 1 ? "," : "", quote_json(entry->name, where),
                          format_name(tensor.dtype()), dims, offset, offset + tensor.nbytes());
    offset += tensor.nbytes();
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');

  AtomicFile file(path);
  const uint64_t length = header.size();
  char bytes[8];
  std::memcpy(bytes, &length, 8);
  file.write(std::string_view(bytes, 8));
  file.write(header);
  for (const NamedTensor* entry : order) {
    file.write(
        {static_cast<const std::byte*>(entry->tensor.raw()), static_cast<size_t>(entry->tensor.nbytes())});
  }
  file.commit();
}

}  // namespace fathom
