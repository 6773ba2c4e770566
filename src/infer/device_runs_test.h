// What the engine and calibration make on a device, for tests that compare devices.
#pragma once

#include "infer/calibrate.h"
#include "infer/engine_rig_test.h"

namespace fathom {

struct EngineRun {
  std::vector<Heard> heard;
  std::vector<double> savings;
};

// Requests of every kind in one engine, with drafts where wanted.
inline EngineRun run_engine(const std::string& json, Device device, bool drafts) {
  EngineRig rig(json, cache_of(6), tiny_config(), device);
  Batcher batcher(rig.many.feeder, rig.with_tables(roomy()));
  Rng rng(31);
  std::vector<Answer> answers;
  for (int i = 0; i < 9; ++i) {
    Request request = random_request(rng);
    if (drafts && i % 3 == 0) request.speculate = random_drafts(rng, request);
    for (Answer& answer : submit(batcher, request)) answers.push_back(std::move(answer));
  }
  while (batcher.step()) {
  }
  EngineRun run;
  for (Answer& answer : answers) run.heard.push_back(hear(answer));
  const Savings savings = rig.many.feeder.savings();
  run.savings = {savings.skip_ratio, savings.block_flops, savings.net_flops, savings.net_bytes};
  return run;
}

inline std::vector<CalibrationPoint> calibrated_points(const std::string& json, Device device) {
  Rig rig(json, tiny_config(), 0.3f, 1, device);
  CalibrateOptions options;
  options.budgets = {0.9f, 0.7f};
  options.all_budgets = false;
  return calibrate(rig.ctx, rig.model, *rig.policy, {random_rows({40, 50, 30}, 8)}, options).points;
}

}  // namespace fathom
