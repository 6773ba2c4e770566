// A small trained model, as a test uses it.
#pragma once

#include "infer/feeder.h"
#include "model/load.h"
#include "support/test_paths.h"

namespace fathom {

inline Model load_story_model(Context& ctx, std::optional<DType> dtype = {}) {
  const LoadOptions files{.dtype = dtype, .tokenizer = FATHOM_TEST_DATA "/stories260k/tokenizer.bin"};
  return load_model(ctx, FATHOM_TEST_DATA "/stories260k/stories260K.bin", files);
}

struct StoryModel {
  Context ctx{{.device = Device::kCpu, .threads = 2}};
  Model model;
  DensePolicy policy;
  PolicyState state;
  KvCache cache;
  Feeder feeder;

  explicit StoryModel(int64_t context = 0, int64_t sequences = 1)
      : model(load_story_model(ctx)),
        cache(ctx, model.config, options(context, sequences)),
        feeder(ctx, model, cache, policy, state) {}

  std::vector<int32_t> encode(const std::string& text) const { return model.tokenizer->encode(text); }

 private:
  static KvCacheOptions options(int64_t context, int64_t sequences) {
    KvCacheOptions made;
    made.context = context;
    made.sequences = sequences;
    made.k_type = made.v_type = DType::kF32;
    return made;
  }
};

}  // namespace fathom
