#include <algorithm>
#include <cmath>
#include <map>

#include "base/format.h"
#include "report/inspection.h"
#include "text/unicode.h"

namespace fathom {
namespace {

// White space made visible, long ones cut.
std::string label_of(const std::string& piece) {
  constexpr size_t kMost = 18;
  std::string out;
  size_t length = 0;
  for (size_t at = 0; at < piece.size(); ++length) {
    const Utf8Char c = decode_utf8(piece, at);
    if (length == kMost) return out + "…";
    out += piece[at] == ' '    ? "·"
           : piece[at] == '\n' ? "⏎"
           : piece[at] == '\t' ? "⇥"
                               : printable(std::string_view(piece).substr(at, c.size));
    at += c.size;
  }
  return out.empty() ? "∅" : out;
}

struct Mean {
  double sum = 0, squares = 0;
  int64_t count = 0;
  void add(double value) {
    if (std::isnan(value)) return;
    sum += value;
    squares += value * value;
    ++count;
  }
  double mean() const { return count ? sum / static_cast<double>(count) : NAN; }
  double error() const {
    if (count < 2) return 0;
    const auto n = static_cast<double>(count);
    return std::sqrt(std::max(0.0, squares / n - mean() * mean()) / (n - 1));
  }
};

std::string number(double value) {
  return std::isnan(value) ? "–" : fmt::format("{:.5f}", value);
}

}  // namespace

InspectionStats::InspectionStats(const Inspection& inspection) : in_(inspection) {
  const Trace& trace = in_.trace;
  if (in_.pieces.size() != trace.rows())
    fail("inspect: {} tokens, but {} rows ran", in_.pieces.size(), trace.rows());
  for (const std::string& piece : in_.pieces) labels_.push_back(label_of(piece));
  classes_ = token_classes(in_.pieces, in_.special);
  for (size_t r = 0; r < trace.rows(); ++r) {
    for (int64_t u = 0; u < trace.units(); ++u) has_scores_ = has_scores_ || !std::isnan(trace.score(r, u));
  }
}

float InspectionStats::value(size_t row, int64_t unit) const {
  return has_scores_ ? in_.trace.score(row, unit) : in_.trace.ran(row, unit) ? 1.0f : 0.0f;
}

double InspectionStats::row_value(size_t row) const {
  Mean mean;
  for (int64_t u = 0; u < in_.trace.units(); ++u) mean.add(value(row, u));
  return mean.mean();
}

double InspectionStats::skipped(size_t row) const {
  return static_cast<double>(layers()) - in_.trace.depth(row);
}

double InspectionStats::skip_ratio(int64_t unit) const {
  Mean skipped;
  for (size_t r = 0; r < rows(); ++r) skipped.add(in_.trace.ran(r, unit) ? 0 : 1);
  return skipped.mean();
}

double InspectionStats::class_value(TokenClass of, int64_t unit) const {
  Mean mean;
  for (size_t r = 0; r < rows(); ++r) {
    if (classes_[r] == of) mean.add(value(r, unit));
  }
  return mean.mean();
}

std::vector<TokenStats> InspectionStats::tokens() const {
  std::map<int32_t, std::vector<size_t>> places;
  for (size_t r = 0; r < rows(); ++r) places[in_.trace.row(r).token].push_back(r);
  std::vector<TokenStats> all;
  for (const auto& [id, where] : places) {
    Mean values, skipped_layers;
    for (const size_t r : where) {
      values.add(row_value(r));
      skipped_layers.add(skipped(r));
    }
    all.push_back({.label = labels_[where[0]],
                   .token_class = classes_[where[0]],
                   .count = static_cast<int64_t>(where.size()),
                   .value = values.mean(),
                   .error = values.error(),
                   .skipped = skipped_layers.mean()});
  }
  const auto rank = [](const TokenStats& token) { return std::isnan(token.value) ? -INFINITY : token.value; };
  std::stable_sort(all.begin(), all.end(),
                   [&](const TokenStats& a, const TokenStats& b) { return rank(a) > rank(b); });
  return all;
}

Table InspectionStats::token_table(const std::vector<TokenStats>& tokens) const {
  Table table{{"token", "class", "places", has_scores_ ? "mean score" : "units run", "layers skipped"}, {}};
  for (const TokenStats& token : tokens)
    table.rows.push_back({token.label, std::string(name_of(token.token_class)), std::to_string(token.count),
                          number(token.value), fmt::format("{:.1f}", token.skipped)});
  return table;
}

Table InspectionStats::class_table() const {
  Table table{
      {"class", "tokens", has_scores_ ? "mean score" : "units run", "± standard error", "layers skipped"},
      {}};
  for (size_t c = 0; c < kTokenClasses; ++c) {
    Mean values, skipped_layers;
    for (size_t r = 0; r < rows(); ++r) {
      if (classes_[r] != static_cast<TokenClass>(c)) continue;
      values.add(row_value(r));
      skipped_layers.add(skipped(r));
    }
    if (skipped_layers.count == 0) continue;
    table.rows.push_back({std::string(name_of(static_cast<TokenClass>(c))),
                          std::to_string(skipped_layers.count), number(values.mean()), number(values.error()),
                          fmt::format("{:.1f}", skipped_layers.mean())});
  }
  return table;
}

}  // namespace fathom
