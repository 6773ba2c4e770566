// Models from files beside the methods: ShortGPT's blocks really removed, saved, loaded again and quantised;
// and adapters that were made on a base before it was quantised.
#include <unistd.h>

#include <filesystem>

#include "infer/engine_rig_test.h"
#include "infer/every_method_test.h"
#include "model/load.h"
#include "model/save.h"
#include "skip/adapter.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

class FromFiles : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = fs::temp_directory_path() /
              ("fathom-files-" + std::to_string(std::hash<std::string>()(test)) + std::to_string(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }

  fs::path folder_;
};

ModelConfig six_layers() {
  ModelConfig c = blocks_config();
  c.layers = 6;
  c.windows.assign(6, 0);
  return c;
}

// The model of the blocks that are kept. kept: (2L), by unit
Model without_others(const Model& model, const std::vector<uint8_t>& kept) {
  Model out = model;
  out.weights.blocks.clear();
  out.config.windows.clear();
  for (size_t layer = 0; layer < model.weights.blocks.size(); ++layer) {
    if (!kept[2 * layer]) continue;
    out.weights.blocks.push_back(model.weights.blocks[layer]);
    out.config.windows.push_back(model.config.windows[layer]);
  }
  out.config.layers = static_cast<int64_t>(out.weights.blocks.size());
  return out;
}

// Which units ran at all.
std::vector<uint8_t> units_run(const Seen& seen) {
  std::vector<uint8_t> run;
  for (const auto& unit : seen.kept) run.push_back(unit.front());
  return run;
}

Model load_as(Context& ctx, const std::string& path, std::optional<DType> dtype) {
  LoadOptions options;
  options.dtype = dtype;
  return load_model(ctx, path, options);
}

TEST_F(FromFiles, RemovedBlocksAreShortGptsDroppedOnes) {
  const Rows rows = random_rows({20, 7}, 3);
  Rig dropping(R"({"name": "short_gpt"})", six_layers());
  const std::vector<uint8_t> kept = units_run(dropping.fresh(rows));
  EXPECT_EQ(std::count(kept.begin(), kept.end(), 0), 4);  // two blocks of six
  const Model shorter = without_others(dropping.model, kept);
  save_hf(dropping.ctx, shorter, at("shorter"), DType::kF32);
  for (const std::optional<DType> type : {std::optional<DType>(), {DType::kQ8_0}, {DType::kQ4_0}}) {
    Rig dense(R"({"name": "dense"})", shorter.config);
    dense.model = load_as(dense.ctx, at("shorter"), type);
    EXPECT_EQ(dense.model.config.layers, 4);
    if (type) convert_weights(dropping.ctx, dropping.model, *type, true);
    EXPECT_EQ(dense.fresh(rows).logits, dropping.fresh(rows).logits);
    dropping.model = Rig(R"({"name": "dense"})", six_layers()).model;
  }
}

TEST_P(FromFiles, MethodsRunOnWhatIsLeft) {
  const Rows rows = random_rows({20, 7}, 3);
  Rig dropping(R"({"name": "short_gpt"})", six_layers());
  const Model shorter = without_others(dropping.model, units_run(dropping.fresh(rows)));
  save_hf(dropping.ctx, shorter, at("shorter"), DType::kF32);
  for (const DType type : {DType::kQ8_0, DType::kQ4_0}) {
    EngineRig rig(GetParam(), cache_of(4), shorter.config);
    rig.rig.model = load_as(rig.rig.ctx, at("shorter"), type);
    rig.calibrate();
    BatcherOptions options = roomy(24);
    options.budgets = &*rig.budgets;
    Batcher batcher(rig.many.feeder, options);
    Rng rng(41);
    std::vector<Request> requests;
    std::vector<Answer> answers;
    for (int i = 0; i < 6; ++i) {
      requests.push_back(random_request(rng));
      for (Answer& answer : submit(batcher, requests.back())) answers.push_back(std::move(answer));
    }
    run_out(batcher);
    for (size_t i = 0; i < requests.size(); ++i)
      ASSERT_EQ(hear(answers[i]).ids, rig.ids_alone(requests[i])) << name_of(type) << ", request " << i;
  }
}

// Made on f32 weights, loaded onto quantised ones without force: the policy is the same bit for bit.
TEST_P(FromFiles, AdaptersServeQuantisedBases) {
  const Rows rows = random_rows({18, 9}, 4);
  Rig rig(GetParam(), blocks_config());
  if (rig.policy->name() == "dense") GTEST_SKIP() << "has no adapter";
  save_hf(rig.ctx, rig.model, at("base"), DType::kF32);
  save_adapter(rig.ctx, at("adapter"), *rig.policy, rig.model);
  for (const DType type : {DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1}) {
    rig.model = load_as(rig.ctx, at("base"), type);
    EXPECT_EQ(rig.model.weights.blocks[1].down.dtype(), type);
    rig.calibrate(0.7f);
    const Seen before = rig.fresh(rows);
    std::unique_ptr<MethodPolicy> own = std::move(rig.policy);
    rig.policy = std::move(load_adapter(rig.ctx, at("adapter"), rig.model).policy);
    const Seen after = rig.fresh(rows);
    EXPECT_EQ(after.kept, before.kept) << name_of(type);
    EXPECT_EQ(after.logits, before.logits) << name_of(type);
    rig.policy = std::move(own);
  }
}

INSTANTIATE_TEST_SUITE_P(All, FromFiles, testing::ValuesIn(every_method()), method_test_name);

}  // namespace
}  // namespace fathom
