#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/format.h"
#include "ops/kernels/row_access.h"
#include "ops/rows/quantile.h"

namespace fathom {
namespace {

float ordered(float score) {
  return std::isnan(score) ? std::numeric_limits<float>::infinity() : score;
}

}  // namespace

void quantile_kernel(CpuBackend, Context&, const Tensor& scores, float q, const Tensor& valid,
                     IfEqual if_equal, Tensor& out) {
  std::vector<float> values;
  for (int64_t r = 0; r < present_rows(scores); ++r)
    if (!valid || valid.data<float>()[r] > 0) values.push_back(ordered(scores.data<float>()[r]));
  if (values.empty()) fail("quantile: at least one score must count, got none of {}", scores.dim(0));
  const double place = static_cast<double>(q) * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::ptrdiff_t>(place);
  std::nth_element(values.begin(), values.begin() + low, values.end());
  const double below = values[static_cast<size_t>(low)], part = place - static_cast<double>(low);
  double result = below;
  if (part > 0) {
    const double above = *std::min_element(values.begin() + low + 1, values.end());
    if (above != below) result = below + (above - below) * part;  // equal: infinities too
  }
  if (if_equal == IfEqual::kBelowAll) {
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    if (*least == *most) result = -std::numeric_limits<double>::infinity();
  }
  out.data<float>()[0] = static_cast<float>(result);
}

void weighted_quantile_kernel(CpuBackend, Context&, const Tensor& scores, const Tensor& weights,
                              std::span<const float> shares, Tensor& out) {
  struct Entry {
    float score;
    double weight;
  };
  std::vector<Entry> entries;
  double total = 0;
  for (int64_t r = 0; r < present_rows(scores); ++r) {
    const double weight = weights.data<float>()[r];
    if (!(weight >= 0)) fail("weighted_quantile: a weight must not be below 0, got {} in row {}", weight, r);
    entries.push_back({ordered(scores.data<float>()[r]), weight});
    total += weight;
  }
  if (entries.empty()) fail("weighted_quantile: at least one score is needed, got none");
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.score > b.score; });
  for (size_t i = 0; i < shares.size(); ++i) {
    // Downwards, as long as what lies strictly above is not too much.
    const double most = (static_cast<double>(shares[i]) + kShareRounding) * total;
    double passed = 0;
    float& result = out.data<float>()[i];
    result = entries[0].score;
    for (const Entry& entry : entries) {
      if (entry.score < result) {
        if (passed > most) break;
        result = entry.score;
      }
      passed += entry.weight;
    }
  }
}

void top_share_kernel(CpuBackend, Context&, const Tensor& scores, const Tensor& sequence, float share,
                      Tensor& out) {
  const int64_t rows = present_rows(scores);
  const int32_t* of = sequence.data<int32_t>();
  std::vector<int64_t> order(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) order[static_cast<size_t>(r)] = r;
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    if (of[a] != of[b]) return of[a] < of[b];
    return ordered(scores.data<float>()[a]) > ordered(scores.data<float>()[b]);
  });
  for (size_t first = 0, last = 0; first < order.size(); first = last) {
    while (last < order.size() && of[order[last]] == of[order[first]]) ++last;
    const auto count = static_cast<double>(last - first);
    const auto kept =
        static_cast<size_t>(std::ceil(std::max(0.0, (static_cast<double>(share) - kShareRounding) * count)));
    for (size_t i = first; i < last; ++i) out.data<float>()[order[i]] = i - first < kept ? 1.0f : 0.0f;
  }
}

}  // namespace fathom
