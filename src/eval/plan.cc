#include "eval/plan.h"

#include <algorithm>
#include <numeric>

#include "infer/slots.h"

namespace fathom {
namespace {

std::span<const int32_t> fed(const TokenRequest& request) {
  return std::span(request.tokens).first(request.tokens.size() - 1);
}

}  // namespace

std::vector<Path> plan_paths(std::span<const TokenRequest> requests, bool apart) {
  std::vector<size_t> order(requests.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto before = [&](size_t a, size_t b) {
    const auto x = fed(requests[a]), y = fed(requests[b]);
    return std::lexicographical_compare(x.begin(), x.end(), y.begin(), y.end());
  };
  if (!apart) std::stable_sort(order.begin(), order.end(), before);

  std::vector<Path> paths;
  std::vector<size_t> owner;  // of each row of the newest path: the path that fed it first
  for (const size_t r : order) {
    const auto rows = fed(requests[r]);
    const int64_t shared = apart || paths.empty() ? 0 : common_prefix(paths.back().tokens, rows);
    if (paths.empty() || apart || shared < static_cast<int64_t>(rows.size())) {
      owner.resize(static_cast<size_t>(shared));
      owner.resize(rows.size(), paths.size());
      paths.push_back({{rows.begin(), rows.end()}, {}});
    }
    for (size_t row = rows.size() - static_cast<size_t>(requests[r].scored); row < rows.size(); ++row)
      paths[owner[row]].targets.push_back({static_cast<int64_t>(row), requests[r].tokens[row + 1], r});
  }
  for (Path& path : paths) {
    std::stable_sort(path.targets.begin(), path.targets.end(),
                     [](const Target& a, const Target& b) { return a.row < b.row; });
  }
  return paths;
}

}  // namespace fathom
