// Models written and read again: weights bit for bit, the config, the logits, the tokenizer. That
// transformers, gguf and llama.cpp read the same files is checked by tools/check_exports.py.
#include "model/save.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/fields.h"
#include "base/mapped_file.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "model/load.h"
#include "model/transformer.h"
#include "model/weights.h"
#include "support/test_paths.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const fs::path kFixtures = fs::path(FATHOM_TEST_DATA) / "models";
const fs::path kStories = fs::path(FATHOM_TEST_DATA) / "stories260k";

std::vector<std::string> saved_fixtures() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kFixtures)) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// What GGUF cannot say, with what the refusal names.
const std::map<std::string, std::string> kRefused{
    {"gemma2_scalar", "query_pre_attn_scalar"}, {"gemma3_pattern", "query_pre_attn_scalar"},
    {"llama_yarn_factor", "betas 2 and 0.25"},  {"llama_yarn_mscale", "truncate"},
    {"mistral", "attention windows"},           {"qwen2_window", "attention windows"}};

class SavedModel : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
    std::replace(test.begin(), test.end(), '/', '_');
    folder_ = fs::temp_directory_path() / ("fathom-save-" + test + "-" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string source() const { return (kFixtures / GetParam()).string(); }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  bool refused() const { return kRefused.count(GetParam()) > 0; }

  Model load(const std::string& path, std::optional<DType> dtype = {}) {
    LoadOptions options;
    options.dtype = dtype;
    return load_model(ctx_, path, options);
  }

  fs::path folder_;
  Context ctx_{{.threads = 2}};
};

// The weights under their Hugging Face names, decoded, as the Hugging Face files order and offset them.
std::map<std::string, std::vector<float>> hf_values(Context& ctx, const Model& model) {
  std::map<std::string, std::vector<float>> out;
  for (const WeightSpec& spec : weight_specs(model)) {
    Tensor tensor = *spec.tensor;
    if (spec.rotated_heads > 0)
      tensor = reorder_rotary_rows(tensor, spec.rotated_heads, model.config.rope_style, RopeStyle::kHalves);
    const Tensor f32 = convert_tensor(ctx, tensor, DType::kF32);
    std::vector<float>& values = out[spec.hf];
    values.assign(f32.data<float>(), f32.data<float>() + f32.numel());
    // Compared as the models use them: 1 + w for Gemma, which is what GGUF holds.
    for (float& value : values) value += spec.norm ? model.config.norm_weight_offset : 0.0f;
  }
  return out;
}

// The config without what tells files apart and not models.
std::string comparable(ModelConfig config) {
  if (config.architecture == "mistral")
    config.architecture = "llama";  // the same without windows; GGUF has one name for both
  config.norm_weight_offset = 0;
  config.rope_style = RopeStyle::kHalves;
  std::sort(config.eos.begin(), config.eos.end());
  return fields_to_json(fields_of(config));
}

double golden_difference(Context& ctx, const Model& model, const fs::path& fixture) {
  const auto file = SafetensorsFile::open((fixture / "golden.safetensors").string());
  const Tensor ids = *file->find("ids"), expected = *file->find("logits");
  KvCache cache(ctx, model.config,
                {.sequences = 1, .context = 256, .k_type = DType::kF32, .v_type = DType::kF32});
  const ArenaScope step(ctx);
  std::vector<BatchRow> rows;
  for (int32_t i = 0; i < ids.numel(); ++i) rows.push_back({ids.data<int32_t>()[i], i, 0, true});
  cache.reserve(ctx, 0, static_cast<int64_t>(rows.size()));
  PolicyState state;
  const Tensor logits = forward(ctx, model, make_batch(ctx, rows), cache, DensePolicy(), state);
  double worst = 0;
  for (int64_t i = 0; i < expected.numel(); ++i) {
    const double difference = std::abs(double{logits.data<float>()[i]} - double{expected.data<float>()[i]});
    worst = difference <= worst ? worst : difference;  // a NaN is kept
  }
  return worst;
}

// `bos`: the config's, which a GGUF file cannot tell from the tokenizer's own.
void expect_same_ids(const Tokenizer& expected, const Tokenizer& got, int32_t bos = -1) {
  for (const char* text :
       {"", "the", " the cat, the12 34", "\n\n  the\tthe  ",
        "na\xc3\xafve \xe6\x97\xa5\xe6\x9c\xac \xf0\x9f\xa6\x84", "<|endoftext|>the<s>the</s>",
        "Once upon a time, there was a little girl named Lily.", "aaaaaaaaaaaaaaa", "          ",
        "don't I'LL\r\n\r\n"}) {
    EXPECT_EQ(got.encode(text), expected.encode(text)) << text;
    EXPECT_EQ(got.encode(text, {.add_special = false, .parse_special = false}),
              expected.encode(text, {.add_special = false, .parse_special = false}))
        << text;
  }
  EXPECT_EQ(got.bos(), expected.bos() >= 0 ? expected.bos() : bos);
  EXPECT_EQ(got.eos(), expected.eos());
  EXPECT_EQ(got.adds_bos(), expected.adds_bos());
  EXPECT_EQ(got.adds_eos(), expected.adds_eos());
  EXPECT_EQ(got.chat_template(), expected.chat_template());
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "nothing was refused";
}

std::string save_gguf_message(Context& ctx, const Model& model, const std::string& path) {
  return message_of([&] { save_gguf(ctx, model, path); });
}

TEST_P(SavedModel, HfFolderStaysTheSame) {
  const Model model = load(source());
  save_hf(ctx_, model, at("hf"), {});
  const Model back = load(at("hf"));
  EXPECT_EQ(comparable(back.config), comparable(model.config));
  EXPECT_EQ(back.config.norm_weight_offset, model.config.norm_weight_offset);
  EXPECT_EQ(hf_values(ctx_, back), hf_values(ctx_, model));
  // The same tensors in the same types, vectors too.
  std::map<std::string, DType> types;
  for (const NamedTensor& named : read_safetensors_dir(source())) types[named.name] = named.tensor.dtype();
  for (const NamedTensor& named : read_safetensors_dir(at("hf"))) {
    EXPECT_EQ(types.erase(named.name), 1u) << named.name;
    EXPECT_EQ(name_of(named.tensor.dtype()), name_of(load(source()).weights.embedding.dtype())) << named.name;
  }
  EXPECT_TRUE(types.empty());
  EXPECT_LE(golden_difference(ctx_, load(at("hf"), DType::kF32), source()), 1e-4);
}

TEST_P(SavedModel, HfToGgufToHf) {
  const Model model = load(source());
  if (refused()) {
    EXPECT_NE(save_gguf_message(ctx_, model, at("m.gguf")).find(kRefused.at(GetParam())), std::string::npos)
        << save_gguf_message(ctx_, model, at("m.gguf"));
    EXPECT_FALSE(fs::exists(at("m.gguf")));
    return;
  }
  save_gguf(ctx_, model, at("m.gguf"));
  const Model gguf = load(at("m.gguf"));
  EXPECT_EQ(hf_values(ctx_, gguf), hf_values(ctx_, model));
  EXPECT_EQ(gguf.weights.embedding.dtype(), model.weights.embedding.dtype());
  EXPECT_LE(golden_difference(ctx_, load(at("m.gguf"), DType::kF32), source()), 1e-4);

  save_hf(ctx_, gguf, at("back"), {});
  const Model back = load(at("back"));
  ModelConfig expected = model.config;
  // Any parameters with the same frequencies are right (GGUF has the frequencies alone).
  if (expected.rope.scaling == RopeScaling::kLlama3) {
    expected.rope.original_context = back.config.rope.original_context;
    if (!expected.has_local_rope) expected.local_rope = expected.rope;
    ModelConfig ours = model.config;
    EXPECT_EQ(inverse_frequencies(back.config.rope, ours.head_dim),
              inverse_frequencies(ours.rope, ours.head_dim));
  }
  EXPECT_EQ(comparable(back.config), comparable(expected));
  EXPECT_EQ(hf_values(ctx_, back), hf_values(ctx_, model));
  EXPECT_LE(golden_difference(ctx_, load(at("back"), DType::kF32), source()), 1e-4);
  ASSERT_EQ(back.tokenizer == nullptr, model.tokenizer == nullptr);
  if (model.tokenizer) expect_same_ids(*model.tokenizer, *gguf.tokenizer, model.config.bos);
  if (model.tokenizer) expect_same_ids(*model.tokenizer, *back.tokenizer, model.config.bos);
}

TEST_P(SavedModel, GgufToHfToGguf) {
  const fs::path path = kFixtures / GetParam() / "model.gguf";
  if (!fs::exists(path)) GTEST_SKIP() << "no model.gguf";
  const Model model = load(path.string());
  save_hf(ctx_, model, at("hf"), {});
  const Model hf = load(at("hf"));
  EXPECT_EQ(hf_values(ctx_, hf), hf_values(ctx_, model));
  EXPECT_LE(golden_difference(ctx_, load(at("hf"), DType::kF32), source()), 1e-4);
  EXPECT_EQ(read_safetensors_dir(at("hf")).size(), read_safetensors_dir(source()).size());

  save_gguf(ctx_, hf, at("back.gguf"));
  const Model back = load(at("back.gguf"));
  EXPECT_EQ(comparable(back.config), comparable(model.config));
  EXPECT_EQ(hf_values(ctx_, back), hf_values(ctx_, model));
  EXPECT_LE(golden_difference(ctx_, load(at("back.gguf"), DType::kF32), source()), 1e-4);
  expect_same_ids(*model.tokenizer, *hf.tokenizer);
  expect_same_ids(*model.tokenizer, *back.tokenizer);

  const Json generation = Json::parse(read_text_file(at("hf/generation_config.json")));
  EXPECT_EQ(generation.at("eos_token_id"), Json(model.config.eos));
}

INSTANTIATE_TEST_SUITE_P(All, SavedModel, testing::ValuesIn(saved_fixtures()),
                         [](const auto& test) { return test.param; });

class Saving : public SavedModel {};
INSTANTIATE_TEST_SUITE_P(One, Saving, testing::Values("smollm2"),
                         [](const auto& test) { return test.param; });

// Every type that can be written.
TEST_P(Saving, TypesSurviveTheFile) {
  for (const char* name : {"llama_bias", "qwen3", "gemma3"}) {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1}) {
      Model model = load((kFixtures / name).string());
      convert_weights(ctx_, model, dtype, true);
      const SaveSummary summary = save_gguf(ctx_, model, at("m.gguf"));
      EXPECT_EQ(summary.bytes, model.weight_bytes());
      const Model back = load(at("m.gguf"));
      EXPECT_EQ(back.weights.blocks[0].up.dtype(), dtype);
      EXPECT_EQ(hf_values(ctx_, back), hf_values(ctx_, model)) << name_of(dtype);
    }
  }
}

// A model that was arranged to run is saved as if it had not been.
TEST_P(Saving, ArrangedWeightsAreWrittenAsRows) {
  const Model plain = load(source(), DType::kQ8_0);
  Model arranged = load(source(), DType::kQ8_0);
  arrange_weights(ctx_, arranged);
  save_gguf(ctx_, plain, at("plain.gguf"));
  save_gguf(ctx_, arranged, at("arranged.gguf"));
  EXPECT_EQ(read_text_file(at("plain.gguf")), read_text_file(at("arranged.gguf")));
  save_hf(ctx_, plain, at("plain"), {});
  save_hf(ctx_, arranged, at("arranged"), {});
  EXPECT_EQ(read_text_file(at("plain/model.safetensors")), read_text_file(at("arranged/model.safetensors")));
}

TEST_P(Saving, Llama2cGoesToBothFormats) {
  LoadOptions options;
  options.tokenizer = (kStories / "tokenizer.bin").string();
  const Model model = load_model(ctx_, (kStories / "stories260K.bin").string(), options);
  save_gguf(ctx_, model, at("m.gguf"));
  save_hf(ctx_, model, at("hf"), {});
  save_gguf(ctx_, load(at("hf")), at("again.gguf"));
  save_hf(ctx_, load(at("m.gguf")), at("again"), {});
  for (const char* name : {"m.gguf", "hf", "again.gguf", "again"}) {
    SCOPED_TRACE(name);
    const Model back = load(at(name));
    EXPECT_EQ(comparable(back.config), comparable(model.config));
    EXPECT_EQ(hf_values(ctx_, back), hf_values(ctx_, model));
    ASSERT_NE(back.tokenizer, nullptr);
    expect_same_ids(*model.tokenizer, *back.tokenizer);
  }
}

TEST_P(Saving, SmolLm2GoesThroughAFolder) {
  const char* path = std::getenv("FATHOM_SMOLLM2");
  if (path == nullptr) GTEST_SKIP() << "skipped: FATHOM_SMOLLM2 names no file";
  const Model model = load(path);
  save_hf(ctx_, model, at("hf"), DType::kBF16);
  const Model hf = load(at("hf"));
  expect_same_ids(*model.tokenizer, *hf.tokenizer);
  save_gguf(ctx_, hf, at("back.gguf"));
  const Model back = load(at("back.gguf"));
  EXPECT_EQ(comparable(back.config), comparable(model.config));
  expect_same_ids(*model.tokenizer, *back.tokenizer);
}

// Block formats become f32, every value the decoded one.
TEST_P(Saving, BlockFormatsAreDecodedInAFolder) {
  Model model = load(source());
  convert_weights(ctx_, model, DType::kQ4_1, true);
  save_hf(ctx_, model, at("hf"), {});
  for (const NamedTensor& named : read_safetensors_dir(at("hf")))
    EXPECT_EQ(named.tensor.dtype(), DType::kF32) << named.name;
  EXPECT_EQ(hf_values(ctx_, load(at("hf"))), hf_values(ctx_, model));
  EXPECT_EQ(message_of([&] { save_hf(ctx_, model, at("q"), DType::kQ8_0); }),
            "a Hugging Face folder holds f32, f16 or bf16, not q8_0");
  EXPECT_FALSE(fs::exists(at("q")));
}

// 1 + w is rounded: a small w comes back a little different, what the model computes with does not.
TEST_P(Saving, GemmasNormsComeBackAsTheyAreUsed) {
  Model model = load((kFixtures / "gemma2").string());
  model.weights.final_norm = convert_tensor(ctx_, model.weights.final_norm, DType::kF32);
  Tensor odd = Tensor::owned(Device::kCpu, DType::kF32, model.weights.final_norm.shape());
  for (int64_t i = 0; i < odd.numel(); ++i) odd.data<float>()[i] = 1.1e-5f * static_cast<float>(i);
  model.weights.final_norm = odd;
  save_gguf(ctx_, model, at("m.gguf"));
  save_hf(ctx_, load(at("m.gguf")), at("hf"), {});
  const Model back = load(at("hf"));
  EXPECT_EQ(hf_values(ctx_, back), hf_values(ctx_, model));  // 1 + w
  for (int64_t i = 0; i < odd.numel(); ++i)
    EXPECT_NEAR(back.weights.final_norm.data<float>()[i], odd.data<float>()[i], 6.1e-8);
}

TEST_P(Saving, GgufMetadataIsKept) {
  const Model model = load((kFixtures / "llama3" / "model.gguf").string());
  save_gguf(ctx_, model, at("m.gguf"));
  const auto original = GgufFile::open(model.path), copy = GgufFile::open(at("m.gguf"));
  for (const GgufKeyValue& pair : original->metadata()) {
    const GgufValue* value = copy->find(pair.key);
    ASSERT_NE(value, nullptr) << pair.key;
    EXPECT_TRUE(*value == pair.value || pair.key == "general.file_type") << pair.key;
  }
}

// A tokenizer given with the model replaces the one in the file.
TEST_P(Saving, AnotherTokenizerIsTheOneWritten) {
  LoadOptions options;
  options.tokenizer = at("tok");
  fs::create_directories(at("tok"));
  Json json = Json::parse(read_text_file(source() + "/tokenizer.json"));
  json["model"]["merges"] = Json::array({"t h"});
  std::ofstream(at("tok/tokenizer.json")) << json.dump();
  const Model model = load_model(ctx_, source() + "/model.gguf", options);
  save_gguf(ctx_, model, at("m.gguf"));
  const Model back = load(at("m.gguf"));
  EXPECT_EQ(back.tokenizer->encode("the"), model.tokenizer->encode("the"));
  EXPECT_NE(back.tokenizer->encode("the"), load(source()).tokenizer->encode("the"));
}

TEST_P(Saving, EndsOfTextAreKept) {
  fs::copy(source(), at("source"));
  std::ofstream(at("source/generation_config.json"))
      << R"({"eos_token_id": [63, 5, 7], "temperature": 0.6, "max_length": 99})";
  const Model model = load(at("source"));
  ASSERT_EQ(model.config.eos, (std::vector<int32_t>{63, 5, 7}));
  save_hf(ctx_, model, at("hf"), {});
  EXPECT_EQ(read_text_file(at("hf/generation_config.json")),
            read_text_file(at("source/generation_config.json")));
  save_gguf(ctx_, model, at("m.gguf"));
  EXPECT_EQ(load(at("m.gguf")).config.eos, model.config.eos);
  save_hf(ctx_, load(at("m.gguf")), at("back"), {});
  EXPECT_EQ(load(at("back")).config.eos, model.config.eos);
}

TEST_P(Saving, AGenerationConfigIsNotTakenOnTrust) {
  fs::copy(source(), at("source"));
  const auto read = [&](const std::string& text) {
    std::ofstream(at("source/generation_config.json")) << text;
    testing::internal::CaptureStderr();
    std::string message;
    try {
      load(at("source"));
    } catch (const UserError& error) {
      message = error.what();
    }
    return message + testing::internal::GetCapturedStderr();
  };
  const std::string file = at("source/generation_config.json");
  EXPECT_EQ(read(R"({"temperature": null, "num_beams": 1, "suppress_tokens": [], "top_k": 50.0})"), "");
  EXPECT_EQ(read(R"({"temperature": "0.6"})"), file + ": 'temperature' must be a finite number, got \"0.6\"");
  EXPECT_EQ(read(R"({"top_k": 1.5})"), file + ": 'top_k' must be a whole number, got 1.5");
  EXPECT_EQ(read(R"({"do_sample": 1})"), file + ": 'do_sample' must be true or false, got 1");
  EXPECT_EQ(read(R"({"eos_token_id": ["</s>"]})"),
            file + ": 'eos_token_id' must be a whole number, got \"</s>\"");
  EXPECT_EQ(read(R"({"eos_token_id": 99999999999})"),
            file + ": 'eos_token_id' must be a whole number, got 99999999999");
  EXPECT_EQ(read(R"({"eos_token_id": -1})"),
            file + ": 'eos_token_id' must be a token's id, or a list of them, got -1");
  EXPECT_EQ(read(R"({"num_beams": 4, "suppress_tokens": [5]})"),
            "fathom: warning: " + file + ": not used here: num_beams, suppress_tokens\n");
  EXPECT_NE(read(std::string(100000, '[')).find("expected JSON of at most"), std::string::npos);
}

// The token that batches are filled up with goes through both formats.
TEST_P(Saving, ThePaddingTokenIsKept) {
  fs::copy(source(), at("source"));
  Json config = Json::parse(read_text_file(at("source/config.json")));
  config["pad_token_id"] = 7;
  std::ofstream(at("source/config.json")) << config.dump();
  save_gguf(ctx_, load(at("source")), at("m.gguf"));
  EXPECT_EQ(GgufFile::open(at("m.gguf"))->integer("tokenizer.ggml.padding_token_id", -1), 7);
  const Model back = load(at("m.gguf"));
  save_hf(ctx_, back, at("back"), {});
  const auto read = [&](const char* name) { return Json::parse(read_text_file(at(name))); };
  EXPECT_EQ(read("back/config.json")["pad_token_id"], 7);
  EXPECT_EQ(read("back/generation_config.json")["pad_token_id"], 7);
  EXPECT_EQ(read("back/tokenizer_config.json")["pad_token"], back.tokenizer->token(7));
}

struct GgufRefusal {
  const char *model, *says;
  void (*change)(ModelConfig&);
};

TEST_P(Saving, WhatLlamaCppWouldComputeOtherwiseIsRefused) {
  const GgufRefusal cases[] = {
      {"gemma2", "no soft-cap", [](ModelConfig& c) { c.logit_soft_cap = 0; }},
      {"gemma3", "attention has a soft-cap", [](ModelConfig& c) { c.attention_soft_cap = 50; }},
      {"gemma3", "window scale their RoPE",
       [](ModelConfig& c) { c.local_rope.scaling = RopeScaling::kLinear; }},
      {"qwen2", "activation", [](ModelConfig& c) { c.activation = Activation::kGeluTanh; }},
      {"qwen2", "are not the width", [](ModelConfig& c) { c.head_dim = 16, c.attention_scale = 0.25f; }},
      {"qwen3", "as in Llama 3", [](ModelConfig& c) { c.rope.scaling = RopeScaling::kLlama3; }},
      {"olmo2", "attention windows", [](ModelConfig& c) { c.windows.assign(c.windows.size(), 8); }},
      {"llama3", "logits have a soft-cap", [](ModelConfig& c) { c.logit_soft_cap = 30; }},
  };
  for (const GgufRefusal& one : cases) {
    Model model = load((kFixtures / one.model).string());
    one.change(model.config);
    const std::string message = save_gguf_message(ctx_, model, at("m.gguf"));
    EXPECT_NE(message.find(one.says), std::string::npos) << one.model << ": " << message;
    EXPECT_FALSE(fs::exists(at("m.gguf")));
  }
}

// Gemma's windows out of step are a list in GGUF.
TEST_P(Saving, WindowPatternsAreWritten) {
  Model model = load((kFixtures / "gemma3").string());
  model.config.windows = {0, 6, 6, 0, 6, 6};
  save_gguf(ctx_, model, at("m.gguf"));
  EXPECT_EQ(load(at("m.gguf")).config.windows, model.config.windows);
}

TEST_P(Saving, OtherDivisorsThanLlama3sAreRefused) {
  Model model = load((kFixtures / "llama31" / "model.gguf").string());
  Tensor odd = Tensor::owned(Device::kCpu, DType::kF32, model.weights.rope_factors.shape());
  for (int64_t i = 0; i < odd.numel(); ++i) odd.data<float>()[i] = 1.0f + static_cast<float>(i);
  model.weights.rope_factors = odd;
  const std::string message = message_of([&] { save_hf(ctx_, model, at("hf"), {}); });
  EXPECT_NE(message.find("rope_freqs.weight is not Llama 3's scaling"), std::string::npos) << message;
  EXPECT_FALSE(fs::exists(at("hf")));
}

}  // namespace
}  // namespace fathom
