#include <filesystem>
#include <set>

#include "base/format.h"
#include "io/json_stream.h"
#include "io/safetensors.h"

namespace fathom {
namespace {

constexpr size_t kMaxIndexBytes = 100'000'000;
constexpr int kIndexDepth = 32;  // what stands beside the weight_map is skipped, whatever it is
constexpr const char* kIndexName = "model.safetensors.index.json";

// "model-00001-of-00002.safetensors": a name in the index's own folder and nothing that could lead elsewhere.
bool is_plain_name(const std::string& file) {
  return !file.empty() && file[0] != '.' &&
         file.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

class IndexReader : public JsonEvents {
 public:
  explicit IndexReader(const std::string& where) : where_(where) {}

  std::map<std::string, std::string> weight_map;
  bool seen = false;  // the weight_map

  void begin_object() override {
    if (++depth_ == 2 && key_ == "weight_map") in_map_ = seen = true;
    if (in_map_ && depth_ > 2) refuse("an object");
  }
  void end_object() override {
    if (depth_-- == 2) in_map_ = false;
  }
  void begin_array() override {
    if (in_map_) refuse("an array");
    value("an array");
    ++depth_;
  }
  void end_array() override { --depth_; }
  void key(std::string name) override {
    if (depth_ == 1 || in_map_) key_ = std::move(name);
  }
  void string(std::string text) override {
    if (!in_map_) return value("a string");
    if (!is_plain_name(text)) {
      fail("{}: tensor '{}' is in '{}', expected the name of a file in the same folder", where_,
           printable(key_), printable(text));
    }
    weight_map.emplace(std::move(key_), std::move(text));
  }
  void whole_number(uint64_t number) override { value(std::to_string(number)); }
  void other(const std::string& what) override { value(what); }

 private:
  void value(const std::string& what) const {
    if (depth_ == 0) fail("{}: expected an object, got {}", where_, printable(what, 40));
    if (in_map_) refuse(what);
    if (depth_ == 1 && key_ == "weight_map")
      fail("{}: weight_map must be an object, got {}", where_, printable(what, 40));
  }
  [[noreturn]] void refuse(const std::string& what) const {
    fail("{}: the file of tensor '{}' must be a string, got {}", where_, printable(key_),
         printable(what, 40));
  }

  const std::string& where_;
  int depth_ = 0;
  bool in_map_ = false;
  std::string key_;  // of the top level, or of the weight_map
};

void take_tensors(const std::string& path, MappedFile::Mode mode, std::vector<NamedTensor>* tensors,
                  std::vector<UnsupportedTensor>* unsupported) {
  const auto file = SafetensorsFile::open(path, mode);
  for (const UnsupportedTensor& entry : file->unsupported()) {
    if (!unsupported) {
      fail(
          "{}: safetensors: tensor '{}' has {}, which fathom does not read; supported: F32, F16, BF16, I32, "
          "U8 of up to {} dimensions",
          printable(path), printable(entry.name), entry.why, Shape::kMaxRank);
    }
    unsupported->push_back(entry);
  }
  tensors->insert(tensors->end(), file->tensors().begin(), file->tensors().end());
}

std::vector<NamedTensor> read_shards(const std::string& dir, MappedFile::Mode mode,
                                     std::vector<UnsupportedTensor>* unsupported) {
  const std::string index_path = dir + "/" + kIndexName;
  const auto weight_map = parse_safetensors_index(read_text_file(index_path, kMaxIndexBytes), index_path);
  std::set<std::string> shards;
  for (const auto& [name, shard] : weight_map) shards.insert(shard);

  std::vector<NamedTensor> tensors;
  std::vector<UnsupportedTensor> others;
  std::map<std::string, std::string> held_by;
  const auto note = [&](const std::string& name, const std::string& shard) {
    const auto [at, fresh] = held_by.emplace(name, shard);
    if (!fresh)
      fail("{}: safetensors: tensor '{}' is in {} and in {}", printable(dir), printable(name),
           printable(at->second), printable(shard));
  };
  for (const std::string& shard : shards) {
    const size_t first = tensors.size(), first_other = others.size();
    take_tensors(fmt::format("{}/{}", dir, shard), mode, &tensors, unsupported ? &others : nullptr);
    for (size_t i = first; i < tensors.size(); ++i) note(tensors[i].name, shard);
    for (size_t i = first_other; i < others.size(); ++i) note(others[i].name, shard);
  }
  for (const auto& [name, shard] : weight_map) {
    const auto at = held_by.find(name);
    if (at == held_by.end() || at->second != shard) {
      fail("{}: tensor '{}' should be in {}, which does not hold it", printable(index_path), printable(name),
           printable(shard));
    }
  }
  if (unsupported) unsupported->insert(unsupported->end(), others.begin(), others.end());
  return tensors;
}

}  // namespace

std::map<std::string, std::string> parse_safetensors_index(std::string_view json, const std::string& name) {
  const std::string where = printable(name);
  IndexReader index(where);
  parse_json(json, kIndexDepth, where, index);
  if (!index.seen) fail("{}: expected a weight_map, there is none", where);
  if (index.weight_map.empty()) fail("{}: the weight_map is empty", where);
  return std::move(index.weight_map);
}

std::vector<NamedTensor> read_safetensors_dir(const std::string& dir, MappedFile::Mode mode,
                                              std::vector<UnsupportedTensor>* unsupported) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const std::string single = dir + "/model.safetensors";
  if (fs::exists(single, ignored)) {
    std::vector<NamedTensor> tensors;
    take_tensors(single, mode, &tensors, unsupported);
    return tensors;
  }
  if (fs::exists(dir + "/" + kIndexName, ignored)) return read_shards(dir, mode, unsupported);
  const bool pickled = fs::exists(dir + "/pytorch_model.bin", ignored) ||
                       fs::exists(dir + "/pytorch_model.bin.index.json", ignored);
  fail("{}: expected model.safetensors or {}, found neither{}", printable(dir), kIndexName,
       pickled ? "; pytorch_model.bin is a Python pickle, which is never opened: save the model again with "
                 "safe_serialization=True"
               : "");
}

}  // namespace fathom
