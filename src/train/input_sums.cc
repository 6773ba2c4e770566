#include "train/input_sums.h"

#include <map>

#include "base/format.h"
#include "model/weights.h"
#include "train/crc32c.h"

namespace fathom {
namespace {

constexpr size_t kMostNamed = 3;

}  // namespace

NamedSums data_sums(const Dataset& data) {
  NamedSums sums;
  for (const DataSource* source : data.sources()) sums.emplace_back(source->name, source->shard->checksum());
  return sums;
}

NamedSums weight_sums(Context& ctx, const Model& model) {
  NamedSums sums;
  for (const WeightSpec& spec : weight_specs(model)) {
    const Tensor here = spec.tensor->to(ctx, Device::kCpu);
    const std::span bytes(static_cast<const std::byte*>(here.raw()), static_cast<size_t>(here.nbytes()));
    sums.emplace_back(spec.hf, crc32c(bytes));
  }
  return sums;
}

std::string differing_names(const NamedSums& saved, const NamedSums& now) {
  std::map<std::string, std::pair<int64_t, int64_t>> both;  // −1: not there
  for (const auto& [name, sum] : saved) both.try_emplace(name, -1, -1).first->second.first = sum;
  for (const auto& [name, sum] : now) both.try_emplace(name, -1, -1).first->second.second = sum;
  std::string list;
  size_t count = 0;
  for (const auto& [name, sums] : both) {
    if (sums.first == sums.second) continue;
    if (++count <= kMostNamed) list += (list.empty() ? "" : ", ") + printable(name);
  }
  if (count > kMostNamed) list += fmt::format(" and {} more", count - kMostNamed);
  return list;
}

}  // namespace fathom
