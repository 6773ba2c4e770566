#pragma once

#include "infer/score.h"
#include "report/inspection.h"
#include "skip/tiny_model_test.h"

namespace fathom {

// A text of hostile tokens through a small model under a method.
struct Inspected {
  Rig rig;
  Trace trace;
  Inspection in;

  explicit Inspected(const std::string& json, float kept = 0.6f)
      : rig(json),
        in{.model = "<m>",
           .method = "m",
           .rule = "r",
           .pieces = {},
           .special = {},
           .logprobs = {},
           .thresholds = {},
           .trace = trace,
           .savings = {}} {
    rig.calibrate(kept);
    KvCache cache(rig.ctx, rig.model.config,
                  {.sequences = 1,
                   .context = 64,
                   .k_type = DType::kF32,
                   .v_type = DType::kF32,
                   .key_bias = rig.policy->has_key_bias()});
    const std::unique_ptr<SkipState> state = rig.make_state(1);
    Feeder feeder(rig.ctx, rig.model, cache, *rig.policy, *state);
    feeder.record(&trace);
    std::vector<int32_t> ids;
    const std::vector<std::string> words{"<s>",     " the", " </script><b>", "\n",  " \"'&`",
                                         "\x1b[2J", "\xff", " house",        " 12", "…"};
    for (int32_t i = 0; i < 24; ++i) {
      ids.push_back(i % 10);
      in.pieces.push_back(words[static_cast<size_t>(i % 10)]);
      in.special.push_back(i % 10 == 0);
    }
    in.logprobs = score(feeder, ids).logprobs;
    in.savings = feeder.savings();
    in.thresholds = rig.thresholds;
  }
};

}  // namespace fathom
