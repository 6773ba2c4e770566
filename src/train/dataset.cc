#include "train/dataset.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "train/encode_document.h"
#include "train/permutation.h"

namespace fathom {
namespace {

// Documents of a source that training (or validation) sees.
struct DocumentRange {
  int64_t begin, end;
};

DocumentRange documents_of(const TokenShard& shard, const DatasetOptions& options) {
  const int64_t all = shard.documents();
  // A source that can be split gives at least one document to either side.
  const auto share = static_cast<int64_t>(std::ceil(static_cast<double>(all) * options.validation_share));
  const int64_t kept_back = all > 1 && share > 0 ? std::clamp<int64_t>(share, 1, all - 1) : 0;
  return options.validation ? DocumentRange{all - kept_back, all} : DocumentRange{0, all - kept_back};
}

}  // namespace

Dataset::Dataset(std::vector<DataSource> sources, DatasetOptions options) : options_(options) {
  if (sources.empty()) fail("expected data to train on, got no source");
  if (options.context < 2) fail("context must be at least 2, got {}", options.context);
  if (options.validation_share < 0 || options.validation_share >= 1)
    fail("validation_share must be in [0, 1), got {}", options.validation_share);
  for (DataSource& data : sources) {
    sources_.push_back({std::move(data), {}, 0});
    cut(sources_.back());
  }
  if (options.validation) std::erase_if(sources_, [](const Source& source) { return source.samples() == 0; });
  if (sources_.empty())
    fail(
        "expected data to validate on: sources of one document cannot be split, give validation data of its "
        "own");
  weigh();
}

void Dataset::cut(Source& source) const {
  const TokenShard& shard = *source.data.shard;
  const auto [first, last] = documents_of(shard, options_);
  source.starts.push_back(first < last ? shard.begin_of(first) : 0);
  if (first >= last) return;
  const int64_t end = shard.end_of(last - 1);
  if (!shard.masked()) {
    for (int64_t at = source.starts[0] + options_.context; at < end; at += options_.context)
      source.starts.push_back(at);
  } else {
    for (int64_t document = first; document < last; ++document) {
      // The open sample takes the document if it fits, else a new one begins; only what fits nowhere is cut.
      const int64_t begin = shard.begin_of(document), stop = shard.end_of(document);
      if (stop - source.starts.back() > options_.context && begin > source.starts.back())
        source.starts.push_back(begin);
      while (stop - source.starts.back() > options_.context)
        source.starts.push_back(source.starts.back() + options_.context);
    }
  }
  source.starts.push_back(end);
}

// Weights are shares of tokens; samples are drawn, so a source of short samples is drawn more often.
void Dataset::weigh() {
  const bool given = sources_[0].data.weight > 0;
  double left = 0;
  for (Source& source : sources_) {
    if ((source.data.weight > 0) != given)
      fail("{}: either every data source has a weight or none has", printable(source.data.name));
    const double mean_length = static_cast<double>(source.tokens()) / static_cast<double>(source.samples());
    source.share = given ? source.data.weight / mean_length : static_cast<double>(source.samples());
    left += source.share;
    samples_ += source.samples();
    tokens_ += source.tokens();
  }
  for (Source& source : sources_) {
    const double own = source.share;
    source.share = left > own ? own / left : 1;
    left -= own;
  }
  sources_.back().share = 1;
}

// Of any n samples in a row the first source gets floor(n·share), of the rest the second floor(…·share), and
// so on: an even interleaving in which a sample's place in its own source is computed, not counted.
Dataset::Place Dataset::place_of(int64_t index) const {
  int64_t rest = index;
  for (size_t s = 0;; ++s) {
    const Source& source = sources_[s];
    const auto before = static_cast<int64_t>(std::floor(static_cast<double>(rest) * source.share));
    const auto after = static_cast<int64_t>(std::floor(static_cast<double>(rest + 1) * source.share));
    if (after == before) {
      rest -= before;
      continue;
    }
    const int64_t n = source.samples(), epoch = before / n;
    if (!options_.shuffle) return {&source, before % n};
    const Permutation order(n, options_.seed, {static_cast<uint32_t>(s), static_cast<uint32_t>(epoch)});
    return {&source, order(before % n)};
  }
}

void Dataset::append(const Place& place, int64_t key_base, TrainBatch& batch) const {
  const TokenShard& shard = *place.source->data.shard;
  const auto sample = static_cast<size_t>(place.sample);
  const int64_t begin = place.source->starts[sample], end = place.source->starts[sample + 1];
  int64_t document = shard.document_of(begin), piece = begin;
  for (int64_t at = begin; at < end; ++at) {
    if (at == begin || at == shard.end_of(document)) {
      document += at == begin ? 0 : 1;
      piece = at;
      batch.sequence_keys.push_back(static_cast<int32_t>(key_base + at - begin));
      ++batch.sequences;
    }
    const uint32_t token = shard.tokens()[static_cast<size_t>(at)];
    if (token_id(token) >= options_.vocab)
      fail("{}: token {} is outside the vocabulary of {}", printable(place.source->data.name),
           token_id(token), options_.vocab);
    const bool has_next = at + 1 < shard.end_of(document);
    const uint32_t next = has_next ? shard.tokens()[static_cast<size_t>(at + 1)] : kNotLearned;
    const float weight = is_learned(next) ? 1.0f : 0.0f;
    batch.tokens.push_back(token_id(token));
    batch.positions.push_back(static_cast<int32_t>(at - piece));
    batch.sequence.push_back(static_cast<int32_t>(batch.sequences - 1));
    batch.targets.push_back(std::min<int32_t>(token_id(next), static_cast<int32_t>(options_.vocab - 1)));
    batch.weights.push_back(weight);
    batch.weight_sum += static_cast<double>(weight);
  }
}

std::vector<const DataSource*> Dataset::sources() const {
  std::vector<const DataSource*> all;
  for (const Source& source : sources_) all.push_back(&source.data);
  return all;
}

TrainBatch Dataset::batch(int64_t first, int64_t count, int64_t place) const {
  TrainBatch batch;
  const auto rows = static_cast<size_t>(count * options_.context);
  for (auto* column : {&batch.tokens, &batch.positions, &batch.sequence, &batch.targets})
    column->reserve(rows);
  batch.weights.reserve(rows);
  for (int64_t i = 0; i < count; ++i) append(place_of(first + i), (place + i) * options_.context, batch);
  return batch;
}

}  // namespace fathom
