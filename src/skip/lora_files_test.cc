// LoRAs from files: PEFT's own (tests/data/lora, tools/make_lora_goldens.py) and ours, merged and beside the
// weights.
#include "skip/lora_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "io/atomic_file.h"
#include "io/safetensors.h"
#include "model/merge_lora.h"
#include "model/save.h"
#include "skip/adapter.h"
#include "skip/tiny_model_test.h"
#include "support/test_paths.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

const std::string kPeft = std::string(FATHOM_TEST_DATA) + "/lora";
const std::string kBase = std::string(FATHOM_TEST_DATA) + "/models/smollm2";

struct Passed {
  std::vector<float> logits;
  Work work;
};

Passed pass(Context& ctx, const Model& model, const std::vector<int32_t>& ids) {
  const ArenaScope scope(ctx);
  std::vector<BatchRow> rows;
  for (size_t i = 0; i < ids.size(); ++i) rows.push_back({ids[i], static_cast<int32_t>(i), 0, true});
  PolicyState state;
  const Work before = ctx.counters().total();
  const Tensor logits = forward(ctx, model, make_batch(ctx, rows), FreshPass{}, DensePolicy(), state);
  Passed passed{std::vector<float>(static_cast<size_t>(logits.numel())), ctx.counters().total() - before};
  copy_to_host(ctx, logits, passed.logits);
  return passed;
}

double apart(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(double{a[i]} - double{b[i]}));
  return worst;
}

class LoraFiles : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() /
            ("fathom_lora_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()) +
             std::to_string(static_cast<int64_t>(::getpid())));
    fs::remove_all(root_);
    fs::create_directories(root_);
    const auto golden = SafetensorsFile::open(kPeft + "/golden.safetensors");
    const Tensor ids = *golden->find("ids"), logits = *golden->find("logits");
    ids_.assign(ids.data<int32_t>(), ids.data<int32_t>() + ids.numel());
    logits_.assign(logits.data<float>(), logits.data<float>() + logits.numel());
  }
  void TearDown() override { fs::remove_all(root_); }
  std::string at(const std::string& name) const { return (root_ / name).string(); }

  Model base(const std::string& path = kBase, DType type = DType::kF32) {
    return load_model(ctx_, path, {.dtype = type});
  }
  // PEFT's folder with its config and tensors changed.
  std::string changed(const std::function<void(Json&, std::vector<NamedTensor>&)>& change) {
    const std::string folder = at("changed" + std::to_string(++copies_));
    fs::create_directories(folder);
    Json json = Json::parse(read_text_file(kPeft + "/adapter_config.json"));
    const auto file = SafetensorsFile::open(kPeft + "/adapter_model.safetensors");
    std::vector<NamedTensor> tensors = file->tensors();
    change(json, tensors);
    write_file_atomically(folder + "/adapter_config.json", json.dump());
    write_safetensors(folder + "/adapter_model.safetensors", tensors);
    return folder;
  }
  std::string refusal(const std::string& folder) {
    try {
      load_adapter(ctx_, folder, base());
    } catch (const UserError& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      return error.what();
    }
    return "";
  }
  void expect_refused(const std::string& folder, const std::string& words) {
    EXPECT_NE(refusal(folder).find(words), std::string::npos) << refusal(folder);
  }

  Context ctx_{{.threads = 2}};
  fs::path root_;
  std::vector<int32_t> ids_;
  std::vector<float> logits_;
  int copies_ = 0;
};

// On the Hugging Face folder, and on the GGUF, whose queries and keys have another order of rows.
TEST_F(LoraFiles, PeftsLogits) {
  for (const std::string& path : {kBase, kBase + "/model.gguf"}) {
    SCOPED_TRACE(path);
    Model merged = base(path), side = base(path);
    EXPECT_GT(apart(pass(ctx_, merged, ids_).logits, logits_), 0.1);
    const Adapter adapter = load_adapter(ctx_, kPeft, merged);
    EXPECT_TRUE(adapter.policy->is_dense());
    EXPECT_EQ(adapter.lora.scale(), 1.5f);
    merge_lora(ctx_, merged, adapter.lora, "peft");
    attach_lora(ctx_, side, adapter.lora);
    EXPECT_LT(apart(pass(ctx_, merged, ids_).logits, logits_), 1e-4);
    EXPECT_LT(apart(pass(ctx_, side, ids_).logits, logits_), 1e-4);
  }
}

// What we write is what PEFT wrote, whatever the order of rows in memory.
TEST_F(LoraFiles, WritesWhatPeftWrote) {
  for (const std::string& path : {kBase, kBase + "/model.gguf"}) {
    Model model = base(path);
    model.lora = read_lora(ctx_, kPeft, model.config);
    const std::string folder = at(fs::path(path).stem());
    fs::create_directories(folder);
    write_lora(ctx_, folder, model, "org/base");
    const auto ours = SafetensorsFile::open(folder + "/adapter_model.safetensors"),
               theirs = SafetensorsFile::open(kPeft + "/adapter_model.safetensors");
    ASSERT_EQ(ours->tensors().size(), theirs->tensors().size());
    for (const NamedTensor& each : theirs->tensors()) {
      const Tensor* mine = ours->find(each.name);
      ASSERT_TRUE(mine) << each.name;
      ASSERT_EQ(mine->shape(), each.tensor.shape());
      EXPECT_EQ(std::memcmp(mine->raw(), each.tensor.raw(), static_cast<size_t>(mine->nbytes())), 0);
    }
    const Json json = Json::parse(read_text_file(folder + "/adapter_config.json"));
    EXPECT_EQ(json["peft_type"], "LORA");
    EXPECT_EQ(json["r"], 4);
    EXPECT_EQ(json["lora_alpha"], 6.0);
    EXPECT_EQ(json["target_modules"].size(), 7u);
  }
}

// An adapter of ours: the method, and the LoRA in a folder inside.
TEST_F(LoraFiles, AMethodAndALora) {
  Model model = base();
  model.lora = read_lora(ctx_, kPeft, model.config);
  const auto policy = MethodPolicy::from_json(R"({"name": "harm_order", "drop": [1]})", "test");
  save_adapter(ctx_, at("a"), *policy, model);
  const Adapter back = load_adapter(ctx_, at("a"), base());
  EXPECT_EQ(back.policy->name(), "harm_order");
  EXPECT_EQ(back.lora.rank, 4);
  Model merged = base();
  merge_lora(ctx_, merged, back.lora, "a");
  EXPECT_LT(apart(pass(ctx_, merged, ids_).logits, logits_), 1e-4);
  fs::remove_all(at("a") + "/lora");  // half copied
  expect_refused(at("a"), "/lora is no LoRA: it has no adapter_config.json");
}

TEST_F(LoraFiles, MergedBlocksBecomeQ8AndFloatsStay) {
  Model model = tiny_model(tiny_config());
  model.lora = initial_lora(model.config, 8, 8, std::vector<std::string>{"q_proj", "gate_proj"}, 3);
  for (const LoraSpec& spec : lora_specs(model)) add_noise(spec.factors->b, 0.02f, 5, 7);
  const Lora lora = model.lora;
  model.lora = {};
  const Model plain = model;
  merge_lora(ctx_, model, lora, "a");
  EXPECT_EQ(model.adapted, "a");
  for (const auto& [held, wanted] : {std::pair{DType::kQ4_1, DType::kQ8_0},
                                     {DType::kBF16, DType::kBF16},
                                     {DType::kF16, DType::kF16},
                                     {DType::kQ8_0, DType::kQ8_0}}) {
    Model other = plain;
    convert_weights(ctx_, other, held, true);
    arrange_weights(ctx_, other);
    merge_lora(ctx_, other, lora, "a");
    EXPECT_EQ(other.weights.blocks[1].q.dtype(), wanted);
    EXPECT_EQ(other.weights.blocks[1].k.dtype(), held);
    // What was added, less the rounding of the base: the LoRA's own difference.
    const Tensor got = convert_tensor(ctx_, other.weights.blocks[1].q, DType::kF32),
                 want = model.weights.blocks[1].q;
    double worst = 0;
    for (int64_t i = 0; i < got.numel(); ++i)
      worst = std::max(worst, std::abs(double{got.data<float>()[i]} - double{want.data<float>()[i]}));
    EXPECT_LT(worst, held == DType::kQ4_1 ? 0.1 : 0.01) << name_of(held);
    EXPECT_GT(worst, 0);
  }
}

// A LoRA that trained with the rounding is merged into that type, unless another is asked for.
TEST_F(LoraFiles, TheTypeItWasTrainedForIsKept) {
  Model model = base();
  model.lora = read_lora(ctx_, kPeft, model.config);
  model.lora.round = DType::kQ4_1;
  const auto policy = MethodPolicy::from_json(R"({"name": "dense"})", "test");
  save_adapter(ctx_, at("a"), *policy, model);
  const Lora lora = load_adapter(ctx_, at("a"), base()).lora;
  ASSERT_EQ(lora.round, DType::kQ4_1);
  for (const auto& [held, asked, wanted] : {std::tuple{DType::kQ4_0, std::optional<DType>(), DType::kQ4_1},
                                            {DType::kQ8_0, std::nullopt, DType::kQ4_1},
                                            {DType::kF16, std::nullopt, DType::kF16},
                                            {DType::kQ4_0, DType::kQ8_0, DType::kQ8_0}}) {
    Model other = base();
    convert_weights(ctx_, other, held, true);
    merge_lora(ctx_, other, lora, "a", asked);
    EXPECT_EQ(other.weights.blocks[0].q.dtype(), wanted) << name_of(held);
  }
  std::string text = read_text_file(at("a") + "/adapter_config.json", size_t{1} << 20);
  const std::string good = R"("lora_type": "q4_1")";
  ASSERT_NE(text.find(good), std::string::npos);
  std::ofstream(at("a") + "/adapter_config.json")
      << text.replace(text.find(good), good.size(), R"("lora_type": "f7")");
  expect_refused(at("a"), "'lora_type' must name a block format, got 'f7'");
}

// The products beside the weights are counted, as the overhead of the adapter.
TEST_F(LoraFiles, SideProductsAreCounted) {
  Model model = tiny_model(tiny_config());
  const Work before = pass(ctx_, model, {1, 2, 3}).work;
  const int64_t bytes = model.weight_bytes();
  attach_lora(ctx_, model, initial_lora(model.config, 8, 8, {}, 3));
  const Work after = pass(ctx_, model, {1, 2, 3}).work;
  uint64_t size = 0;
  for (const LoraSpec& spec : lora_specs(model)) size += static_cast<uint64_t>(8 * (spec.in + spec.out));
  EXPECT_EQ(after.madds - before.madds, 3 * size);
  EXPECT_EQ(after.policy_madds - before.policy_madds, 3 * size);
  EXPECT_EQ(after.weight_bytes - before.weight_bytes, 4 * size);
  EXPECT_EQ(model.weight_bytes() - bytes, static_cast<int64_t>(4 * size));
}

TEST_F(LoraFiles, FactorsBesideBlocksAreSmall) {
  ModelConfig config = tiny_config();
  Model model = tiny_model(config);
  convert_weights(ctx_, model, DType::kQ4_1, true);
  attach_lora(ctx_, model, initial_lora(config, 8, 8, {}, 3));
  EXPECT_EQ(model.lora.blocks[0][0].a.dtype(), DType::kQ8_0);
  EXPECT_EQ(model.lora.blocks[0][0].b.dtype(), DType::kF16);
  attach_lora(ctx_, model, initial_lora(config, 32, 8, {}, 3));
  EXPECT_EQ(model.lora.blocks[0][0].b.dtype(), DType::kQ8_0);
}

// A model that was written merged says so, and is not adapted again.
TEST_F(LoraFiles, AMarkedModelIsNotAdaptedAgain) {
  Model model = base();
  merge_lora(ctx_, model, read_lora(ctx_, kPeft, model.config), "some/adapter");
  save_gguf(ctx_, model, at("merged.gguf"));
  save_hf(ctx_, model, at("merged"), DType::kF32);
  for (const std::string name : {"merged.gguf", "merged"}) {
    const Model back = load_model(ctx_, at(name));
    EXPECT_EQ(back.adapted, "some/adapter");
    EXPECT_LT(apart(pass(ctx_, back, ids_).logits, logits_), 1e-4);
    try {
      load_adapter(ctx_, kPeft, back);
      ADD_FAILURE() << name;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("the LoRA of some/adapter is part of"), std::string::npos)
          << error.what();
    }
    EXPECT_TRUE(load_adapter(ctx_, kPeft, back, true).lora.any());
  }
}

TEST_F(LoraFiles, WhatIsNotComputedIsRefusedByName) {
  const std::pair<const char*, Json> kChanges[] = {{"use_rslora", true},
                                                   {"use_dora", true},
                                                   {"bias", "all"},
                                                   {"modules_to_save", Json::array({"lm_head"})},
                                                   {"rank_pattern", {{"q_proj", 8}}},
                                                   {"alpha_pattern", {{"q_proj", 8}}},
                                                   {"fan_in_fan_out", true},
                                                   {"alora_invocation_tokens", Json::array({1})}};
  for (const auto& [key, value] : kChanges) {
    expect_refused(changed([&](Json& json, auto&) { json[key] = value; }),
                   std::string(key) + " = " + value.dump() + " is not supported");
  }
}

TEST_F(LoraFiles, WhatDoesNotFitIsRefused) {
  using Tensors = std::vector<NamedTensor>;
  expect_refused(changed([](Json& json, Tensors&) { json["r"] = 8; }), "another rank");
  expect_refused(changed([](Json& json, Tensors&) { json["r"] = 0; }), "'r' must be a whole number");
  expect_refused(changed([](Json& json, Tensors&) { json.erase("lora_alpha"); }),
                 "'lora_alpha' must be a number");
  expect_refused(changed([](Json& json, Tensors&) { json["lora_alpha"] = 1e39; }),
                 "'lora_alpha' must be a number that f32 holds, got 1e+39");
  expect_refused(changed([](Json& json, Tensors&) { json["target_modules"].push_back("fc1"); }), "got 'fc1'");
  expect_refused(changed([](Json&, Tensors& tensors) { tensors.pop_back(); }), "is missing");
  expect_refused(
      changed([](Json&, Tensors& tensors) {
        tensors.push_back({"base_model.model.model.layers.9.mlp.up_proj.lora_A.weight", tensors[0].tensor});
      }),
      "layers.9.mlp.up_proj.lora_A.weight is no factor of a matrix that this model has");
  expect_refused(changed([](Json&, Tensors& tensors) {
                   Tensor bad = Tensor::owned(Device::kCpu, DType::kF32, tensors[0].tensor.shape());
                   bad.data<float>()[3] = NAN;
                   tensors[0].tensor = bad;
                 }),
                 "holds a number that is not finite");
  // Half written.
  const std::string half = changed([](Json&, Tensors&) {});
  fs::resize_file(half + "/adapter_model.safetensors", 4000);
  EXPECT_NE(refusal(half), "");
  fs::remove(half + "/adapter_model.safetensors");
  expect_refused(half, "is no whole LoRA: it has no adapter_model.safetensors");
  // Nested without end, in a file that only this reader sees.
  const std::string deep = changed([](Json&, Tensors&) {});
  std::ofstream(deep + "/adapter_config.json") << "{\"target_modules\": " << std::string(200000, '[');
  EXPECT_THROW(read_lora(ctx_, deep, base().config), UserError);
  // Another base.
  const Model other = tiny_model(tiny_config());
  EXPECT_THROW(load_adapter(ctx_, kPeft, other), UserError);
}

TEST_F(LoraFiles, ProjectionsTellWeightsApart) {
  const Fingerprint hf = fingerprint(ctx_, base()), gguf = fingerprint(ctx_, base(kBase + "/model.gguf"));
  EXPECT_EQ(hf.projections.size(), 64u);
  EXPECT_LT(projection_difference(hf, gguf), 0.01);
  Model model = tiny_model(tiny_config()), rounded = model, arranged = model;
  convert_weights(ctx_, rounded, DType::kQ4_1, true);
  convert_weights(ctx_, arranged, DType::kQ8_0, true);
  arrange_weights(ctx_, arranged);
  const Fingerprint whole = fingerprint(ctx_, model);
  EXPECT_LT(projection_difference(whole, fingerprint(ctx_, rounded)), 0.12);
  EXPECT_GT(projection_difference(whole, fingerprint(ctx_, rounded)), 0.02);
  EXPECT_LT(projection_difference(whole, fingerprint(ctx_, arranged)), 0.02);
  EXPECT_GT(projection_difference(whole, fingerprint(ctx_, tiny_model(tiny_config(), 2))), 0.5);
  Fingerprint old = whole;
  old.projections.clear();
  EXPECT_EQ(projection_difference(old, whole), 0);
}

}  // namespace
}  // namespace fathom
