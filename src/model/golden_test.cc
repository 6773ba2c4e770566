// Logits of a tiny random model of every architecture against transformers' (tests/data/models,
// tools/make_model_goldens.py), and the row invariance that everything above the engine stands on.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/fields.h"
#include "io/safetensors.h"
#include "model/load.h"
#include "model/transformer.h"
#include "support/test_paths.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

struct Golden {
  std::vector<int32_t> ids;
  std::vector<float> logits;  // (ids, vocab)
};

Golden read_golden(const fs::path& dir) {
  const auto file = SafetensorsFile::open((dir / "golden.safetensors").string());
  const Tensor ids = *file->find("ids"), logits = *file->find("logits");
  return {{ids.data<int32_t>(), ids.data<int32_t>() + ids.numel()},
          {logits.data<float>(), logits.data<float>() + logits.numel()}};
}

// All positions' logits, the ids fed in pieces of `chunk`.
std::vector<float> run(Context& ctx, const Model& model, const std::vector<int32_t>& ids, size_t chunk,
                       DType cache_type) {
  KvCache cache(ctx, model.config,
                {.sequences = 1, .context = 256, .k_type = cache_type, .v_type = cache_type});
  const DensePolicy policy;
  PolicyState state;
  std::vector<float> out;
  for (size_t begin = 0; begin < ids.size(); begin += chunk) {
    const ArenaScope step(ctx);
    std::vector<BatchRow> rows;
    for (size_t i = begin; i < std::min(ids.size(), begin + chunk); ++i)
      rows.push_back({ids[i], static_cast<int32_t>(i), 0, true});
    cache.reserve(ctx, 0, static_cast<int64_t>(rows.size()));
    const Tensor logits = forward(ctx, model, make_batch(ctx, rows), cache, policy, state);
    const size_t old = out.size();
    out.resize(old + static_cast<size_t>(logits.numel()));
    copy_to_host(ctx, logits, std::span(out).subspan(old));
  }
  return out;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = std::abs(double{a[i]} - double{b[i]});
    worst = difference <= worst ? worst : difference;  // a NaN is kept
  }
  return worst;
}

// The fixtures that hold `file`.
std::vector<std::string> fixtures(const char* file = "config.json") {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(fs::path(FATHOM_TEST_DATA) / "models")) {
    if (fs::exists(entry.path() / file)) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class GoldenModel : public testing::TestWithParam<std::string> {
 protected:
  fs::path dir() const { return fs::path(FATHOM_TEST_DATA) / "models" / GetParam(); }
};
class GoldenGguf : public GoldenModel {};
class GoldenConfig : public GoldenModel {};

TEST_P(GoldenModel, LogitsMatchTransformers) {
  Context ctx({.threads = 2});
  const Golden golden = read_golden(dir());
  const Model model = load_model(ctx, dir().string(), {.dtype = DType::kF32});
  const double difference =
      largest_difference(run(ctx, model, golden.ids, golden.ids.size(), DType::kF32), golden.logits);
  EXPECT_LE(difference, 1e-4);
  RecordProperty("largest_difference", std::to_string(difference));
}

TEST_P(GoldenConfig, BothSpellingsAgree) {
  const auto read = [&](const char* name) {
    const std::string path = (dir() / name).string();
    ModelConfig config = config_from_hf(read_text_file(path), path);
    return fields_to_json(fields_of(config));
  };
  EXPECT_EQ(read("config.json"), read("config_v5.json"));
}

TEST_P(GoldenGguf, GivesTheSameLogits) {
  Context ctx({.threads = 2});
  const Golden golden = read_golden(dir());
  const Model model = load_model(ctx, (dir() / "model.gguf").string(), {.dtype = DType::kF32});
  EXPECT_LE(largest_difference(run(ctx, model, golden.ids, golden.ids.size(), DType::kF32), golden.logits),
            1e-4);
}

// Bit for bit: any chunking and any number of threads give what one pass on one thread gives.
TEST_P(GoldenModel, ChunkingAndThreadsChangeNoBit) {
  Context one({.threads = 1}), two({.threads = 2});
  const Golden golden = read_golden(dir());
  const Model model = load_model(one, dir().string());
  for (DType cache : {DType::kF32, DType::kF16, DType::kBF16}) {
    const std::vector<float> whole = run(one, model, golden.ids, golden.ids.size(), cache);
    for (size_t chunk : {1, 3, 7})
      EXPECT_EQ(run(two, model, golden.ids, chunk, cache), whole) << "chunk " << chunk;
    EXPECT_EQ(run(two, model, golden.ids, golden.ids.size(), cache), whole);
  }
}

const auto kName = [](const testing::TestParamInfo<std::string>& model) { return model.param; };
INSTANTIATE_TEST_SUITE_P(All, GoldenModel, testing::ValuesIn(fixtures()), kName);
INSTANTIATE_TEST_SUITE_P(All, GoldenGguf, testing::ValuesIn(fixtures("model.gguf")), kName);
INSTANTIATE_TEST_SUITE_P(All, GoldenConfig, testing::ValuesIn(fixtures("config_v5.json")), kName);

TEST(GoldenModels, EveryArchitectureHasOne) {
  const std::vector<std::string> names = fixtures();
  for (const char* wanted :
       {"llama2", "llama3", "llama31", "llama32", "llama_linear", "llama_yarn", "mistral", "smollm2", "qwen2",
        "qwen3", "olmo2", "gemma2", "gemma3", "skip_middle"}) {
    const bool there = std::any_of(names.begin(), names.end(),
                                   [&](const std::string& name) { return name.starts_with(wanted); });
    EXPECT_TRUE(there) << wanted;
  }
}

}  // namespace
}  // namespace fathom
