// Samples out of tokenized sources: which tokens make up step n is a pure function of (config, n), so that a
// run can go on anywhere.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "train/token_shard.h"

namespace fathom {

// Packed rows. A sequence is one document (or a piece of one that was cut), positions from 0: attention never
// crosses its ends.
struct TrainBatch {
  std::vector<int32_t> tokens, positions, sequence, targets;  // per row; sequence ids from 0 within the batch
  std::vector<float> weights;                                 // per row; 0: nothing to predict there
  std::vector<int32_t> sequence_keys;  // per sequence: its place in the step (noise is keyed by it)
  int64_t sequences = 0;
  double weight_sum = 0;

  int64_t rows() const { return static_cast<int64_t>(tokens.size()); }
};

struct DataSource {
  std::string name;  // for messages
  std::shared_ptr<const TokenShard> shard;
  double weight = 0;  // share of the tokens, relative to the others'; 0: as many as it has
};

struct DatasetOptions {
  int64_t context = 0;  // tokens of a sample, at most
  uint64_t seed = 0;
  bool shuffle = true;
  int64_t vocab = 0;
  // Which documents of each source: the last `validation_share` of them are kept from training.
  double validation_share = 0;
  bool validation = false;
};

// A sample is up to `context` tokens in a row of one source. Plain text is cut where the sample is full (the
// target of its last token is then the next sample's first); documents with answers stay whole where they
// fit, so that no answer loses its prompt.
class Dataset {
 public:
  Dataset(std::vector<DataSource> sources, DatasetOptions options);

  int64_t samples() const { return samples_; }  // of one pass over every source
  int64_t tokens() const { return tokens_; }
  std::vector<const DataSource*> sources() const;
  // Samples first … first + count − 1 of the endless stream, packed. `place`: of the first in its step.
  TrainBatch batch(int64_t first, int64_t count, int64_t place) const;

 private:
  struct Source {
    DataSource data;
    std::vector<int64_t> starts;  // sample i is tokens [starts[i], starts[i + 1])
    int64_t samples() const { return static_cast<int64_t>(starts.size()) - 1; }
    int64_t tokens() const { return starts.back() - starts.front(); }
    double share = 0;  // of the samples that no source before it takes
  };
  struct Place {
    const Source* source;
    int64_t sample;
  };
  void cut(Source& source) const;
  void weigh();
  Place place_of(int64_t index) const;
  void append(const Place& place, int64_t key_base, TrainBatch& batch) const;

  std::vector<Source> sources_;
  DatasetOptions options_;
  int64_t samples_ = 0, tokens_ = 0;
};

}  // namespace fathom
