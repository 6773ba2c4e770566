// Models that must not load, each with the sentence that says why; and the conversion of weights at load.
#include "model/load.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "model/weights.h"
#include "ops/linear/matrix_rows.h"
#include "support/test_paths.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const fs::path kModels = fs::path(FATHOM_TEST_DATA) / "models";

class Loading : public testing::Test {
 protected:
  void SetUp() override {
    const std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = fs::temp_directory_path() / ("fathom-load-" + test + "-" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string at(const std::string& name) const { return (folder_ / name).string(); }

  // A copy of a fixture to spoil.
  std::string copy(const std::string& model) {
    const std::string path = at(model);
    fs::remove_all(path);
    fs::copy(kModels / model, path);
    return path;
  }
  void edit_json(const std::string& path, const Json& changes) {
    Json json = Json::parse(read_text_file(path));
    json.update(changes);
    std::ofstream(path) << json.dump();
  }
  void edit_tensors(const std::string& folder, const std::function<void(std::vector<NamedTensor>&)>& edit) {
    std::vector<NamedTensor> tensors = read_safetensors_dir(folder, MappedFile::Mode::kRead);
    edit(tensors);
    write_safetensors(folder + "/model.safetensors", tensors);
  }
  // A fixture's GGUF with metadata and tensors changed.
  std::string edit_gguf(const std::string& model, const std::vector<GgufKeyValue>& changes,
                        const std::function<void(std::vector<NamedTensor>&)>& edit = {}) {
    const auto file = GgufFile::open((kModels / model / "model.gguf").string());
    std::vector<GgufKeyValue> metadata = changes;
    for (const GgufKeyValue& pair : file->metadata()) {
      const bool replaced = std::any_of(changes.begin(), changes.end(),
                                        [&](const GgufKeyValue& c) { return c.key == pair.key; });
      if (!replaced) metadata.push_back(pair);
    }
    std::vector<NamedTensor> tensors;
    for (const GgufTensorInfo& info : file->tensors()) tensors.push_back({info.name, file->tensor(info)});
    if (edit) edit(tensors);
    write_gguf(at("m.gguf"), metadata, tensors);
    return at("m.gguf");
  }

  std::string refusal(const std::string& path, const LoadOptions& options = {}) {
    try {
      load_model(ctx_, path, options);
    } catch (const UserError& error) {
      return error.what();
    }
    return "nothing was refused";
  }
  void expect_refusal(const std::string& path, const std::string& says, const LoadOptions& options = {}) {
    const std::string message = refusal(path, options);
    EXPECT_NE(message.find(says), std::string::npos) << "expected: " << says << "\ngot: " << message;
  }

  fs::path folder_;
  Context ctx_{{.threads = 2}};
};

GgufKeyValue number(const char* key, int64_t value) {
  return {key, {GgufType::kU32, value}};
}
GgufKeyValue real(const char* key, double value) {
  return {key, {GgufType::kF32, value}};
}
GgufKeyValue text(const char* key, const std::string& value) {
  return {key, {GgufType::kString, value}};
}
GgufKeyValue flag(const char* key, bool value) {
  return {key, {GgufType::kBool, int64_t{value}}};
}

TEST_F(Loading, FixturesLoadAsTheyAre) {
  EXPECT_EQ(refusal(copy("llama3")), "nothing was refused");
  EXPECT_EQ(refusal(edit_gguf("llama3", {})), "nothing was refused");
}

TEST_F(Loading, PathsThatHoldNoModel) {
  expect_refusal(at("nowhere"), "no such file or folder: " + at("nowhere"));
  fs::create_directories(at("empty"));
  expect_refusal(at("empty"), "expected a model folder with config.json");
  expect_refusal((kModels / "llama3" / "model.safetensors").string(),
                 "a safetensors file has no config: give the folder that also holds config.json");
  expect_refusal((kModels / "llama3" / "config.json").string(),
                 "expected a Hugging Face folder, a .gguf or a llama2.c .bin, got");
  std::ofstream(at("model.bin")) << std::string("PK\x03\x04", 4) + std::string(100, 'x');
  expect_refusal(at("model.bin"), "PyTorch");
}

TEST_F(Loading, AdaptersAndPickles) {
  fs::create_directories(at("lora"));
  std::ofstream(at("lora/adapter_config.json")) << R"({"peft_type": "LORA"})";
  expect_refusal(at("lora"), "this is an adapter (adapter_config.json), not a model");
  const std::string pickle = copy("llama3");
  fs::rename(pickle + "/model.safetensors", pickle + "/pytorch_model.bin");
  expect_refusal(pickle, "holds pickle weights (pytorch_model.bin)");
}

TEST_F(Loading, ConfigsAreCheckedAtLoad) {
  const std::string folder = copy("llama3");
  const auto with = [&](const Json& changes, const char* says) {
    fs::copy_file(kModels / "llama3" / "config.json", folder + "/config.json",
                  fs::copy_options::overwrite_existing);
    edit_json(folder + "/config.json", changes);
    expect_refusal(folder, says);
  };
  with({{"model_type", "gpt_neox"}}, "config.json: architecture 'gpt_neox' is not supported");
  with({{"num_experts", 8}}, "the key 'num_experts' is not known");
  with({{"quantization_config", {{"quant_method", "gptq"}}}},
       "weights quantised by 'gptq' are not supported");
  with({{"hidden_size", 64}}, "must be (64, 64), got (64, 32)");
  with({{"num_hidden_layers", 7}}, "is missing");
  with({{"num_hidden_layers", 1}}, "belongs to nothing that the architecture 'llama' computes here");
  with({{"eos_token_id", 64}}, "the EOS token 64 is outside the vocabulary of 64");
  with({{"bos_token_id", 1000}}, "the BOS token 1000 is outside the vocabulary of 64");
}

TEST_F(Loading, TensorsThatAreNotTheModels) {
  std::string folder = copy("llama3");
  edit_tensors(folder, [](auto& tensors) {
    tensors.push_back({"model.layers.0.extra.weight", tensors[0].tensor});
  });
  expect_refusal(folder, "tensor 'model.layers.0.extra.weight'");

  folder = copy("llama3");
  edit_tensors(folder, [](auto& tensors) {
    std::erase_if(tensors, [](const auto& t) { return t.name == "model.norm.weight"; });
  });
  expect_refusal(folder, "tensor 'model.norm.weight' is missing");

  folder = copy("llama3");
  edit_tensors(folder, [](auto& tensors) {
    for (auto& t : tensors) {
      if (t.name == "model.norm.weight") t.tensor = t.tensor.reshape({2, t.tensor.numel() / 2});
    }
  });
  expect_refusal(folder, "tensor 'model.norm.weight' must be (32), got (2, 16)");

  folder = copy("llama3");
  edit_tensors(folder, [](auto& tensors) {
    for (auto& t : tensors) {
      if (t.name == "model.norm.weight")
        t.tensor = Tensor::owned(Device::kCpu, DType::kI32, t.tensor.shape());
    }
  });
  expect_refusal(folder, "tensor 'model.norm.weight' must hold floating-point numbers, got i32");
}

// Some checkpoints of tied models hold the output too; it is the embedding, whatever stands there.
TEST_F(Loading, TiedModelsMayHoldAnOutput) {
  const std::string folder = copy("smollm2");
  edit_tensors(folder, [](auto& tensors) {
    for (const auto& t : std::vector<NamedTensor>(tensors)) {
      if (t.name == "model.embed_tokens.weight") tensors.push_back({"lm_head.weight", t.tensor});
    }
  });
  const Model model = load_model(ctx_, folder);
  EXPECT_TRUE(model.config.tied);
  EXPECT_EQ(model.weights.output.raw(), model.weights.embedding.raw());
}

TEST_F(Loading, TokenizerAndModelMustFit) {
  const std::string folder = copy("llama3");
  Json json = Json::parse(read_text_file(folder + "/tokenizer.json"));
  json["added_tokens"].push_back({{"id", 64}, {"content", "<extra>"}, {"special", true}});
  std::ofstream(folder + "/tokenizer.json") << json.dump();
  expect_refusal(
      folder,
      "the tokenizer has 65 tokens, more than the model's vocabulary of 64: they do not belong together");
  LoadOptions options;
  options.tokenizer = at("nowhere.json");
  expect_refusal((kModels / "llama2").string(), "nowhere.json", options);
}

TEST_F(Loading, GgufMetadata) {
  const auto with = [&](const std::vector<GgufKeyValue>& changes, const char* says) {
    expect_refusal(edit_gguf("llama3", changes), says);
  };
  with({text("general.architecture", "mamba")},
       "gguf: architecture 'mamba' is not supported (llama, qwen2, qwen3, olmo2,");
  with({number("llama.attention.head_count", 0)}, "the number of heads must be at least 1, got 0");
  with({number("llama.attention.head_count_kv", 0)},
       "the number of key/value heads must be between 1 and 4, got 0");
  with({number("llama.attention.head_count_kv", 3)}, "4 heads cannot share 3 key/value heads evenly");
  with({number("llama.attention.head_count", 4294967295)}, "must be between 1 and");
  with({number("llama.block_count", 0)}, "the number of layers must be between 1 and 1024, got 0");
  with({number("llama.block_count", 4294967295)},
       "the number of layers must be between 1 and 1024, got 4294967295");
  with({number("llama.block_count", 9)}, "is missing");
  with({{"llama.block_count", {GgufType::kI32, int64_t{-2}}}},
       "the number of layers must be between 1 and 1024, got -2");
  with({text("llama.block_count", "two")}, "llama.block_count");
  with({number("llama.expert_count", 8)}, "mixtures of experts are not supported");
  with({number("llama.rope.dimension_count", 4)}, "only rotating the whole head");
  with({text("llama.rope.scaling.type", "longrope")},
       "RoPE scaling 'longrope' is not supported (none, linear, yarn)");
  with({real("llama.rope.freq_base", std::nan(""))}, "the RoPE base must be above 0 and finite, got nan");
  with({real("llama.attention.scale", 0)}, "the attention scale must be above 0");
  with({real("llama.attention.layer_norm_rms_epsilon", -1)}, "the norm's eps must be between 0 and 1");
  with({number("llama.attention.sliding_window", 8)}, "windows of this architecture are not supported");
  with({flag("llama.attention.causal", false)}, "'llama.attention.causal' is false");
  with({real("llama.residual_scale", 0.2)}, "the key 'llama.residual_scale' is not known");
  with({number("llama.attention.value_length", 64)}, "keys and values of different sizes are not supported");
  with({number("tokenizer.ggml.eos_token_id", 64)}, "64");
  with({number("llama.embedding_length", 48)}, "must be");
  with({{"llama.attention.head_count_kv",
         {GgufType::kArray, GgufArray{GgufType::kI32, std::vector<int64_t>{2, 4}}}}},
       "'llama.attention.head_count_kv' differs between layers");
}

TEST_F(Loading, GgufTensors) {
  const auto without = [&](const char* name) {
    return edit_gguf("llama31", {}, [&](auto& tensors) {
      std::erase_if(tensors, [&](const auto& t) { return t.name == name; });
    });
  };
  expect_refusal(without("blk.1.ffn_up.weight"), "tensor 'blk.1.ffn_up.weight' is missing");
  expect_refusal(without("token_embd.weight"), "there is no token_embd.weight matrix");
  const auto reshaped = edit_gguf("llama31", {}, [&](auto& tensors) {
    for (auto& t : tensors) {
      if (t.name == "rope_freqs.weight") t.tensor = t.tensor.reshape({2, t.tensor.numel() / 2});
    }
  });
  expect_refusal(reshaped, "tensor 'rope_freqs.weight' must be f32 (8), got f32 (2, 4)");
  const auto extra = edit_gguf("llama3", {}, [](auto& tensors) {
    tensors.push_back({"blk.0.ffn_gate_inp.weight", tensors[0].tensor});
  });
  expect_refusal(extra, "tensor 'blk.0.ffn_gate_inp.weight'");
}

// llama.cpp reads a factor without a type as linear scaling.
TEST_F(Loading, GgufFactorAloneIsLinear) {
  const Model model = load_model(ctx_, edit_gguf("llama3", {real("llama.rope.scaling.factor", 4)}));
  EXPECT_EQ(model.config.rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(model.config.rope.factor, 4);
}

TEST_F(Loading, WeightsAreConvertedAtLoad) {
  LoadOptions options;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1}) {
    options.dtype = dtype;
    const Model model = load_model(ctx_, (kModels / "smollm2").string(), options);
    EXPECT_EQ(model.weights.blocks[0].q.dtype(), dtype);
    EXPECT_EQ(model.weights.embedding.dtype(), dtype);
    EXPECT_EQ(model.weights.output.raw(), model.weights.embedding.raw());
    EXPECT_EQ(model.weights.blocks[0].attention_norm.dtype(), DType::kF32);
  }
}

// What is arranged can be had as it was: for whoever saves, hashes or converts it.
TEST_F(Loading, ArrangedWeightsHoldTheSameRows) {
  LoadOptions options;
  options.dtype = DType::kQ8_0;
  const Model model = load_model(ctx_, (kModels / "smollm2").string(), options);
  Model arranged = load_model(ctx_, (kModels / "smollm2").string(), options);
  arrange_weights(ctx_, arranged);
  arrange_weights(ctx_, arranged);  // again: nothing is left to do
  const auto specs = weight_specs(model), arranged_specs = weight_specs(arranged);
  for (size_t i = 0; i < specs.size(); ++i) {
    const Tensor &one = *specs[i].tensor, back = in_rows(ctx_, *arranged_specs[i].tensor);
    EXPECT_EQ(back.layout(), Layout::kRows);
    EXPECT_EQ(std::memcmp(one.raw(), back.raw(), static_cast<size_t>(one.nbytes())), 0) << specs[i].hf;
    if (!specs[i].matrix) continue;
    const Tensor values = convert_tensor(ctx_, one, DType::kF32),
                 same = convert_tensor(ctx_, *arranged_specs[i].tensor, DType::kF32);
    EXPECT_EQ(std::memcmp(values.raw(), same.raw(), static_cast<size_t>(values.nbytes())), 0) << specs[i].hf;
  }
}

// Rows that are no whole blocks keep their type where that is asked for, and are an error where it is not.
TEST_F(Loading, RowsThatDoNotFitABlock) {
  LoadOptions options;
  options.dtype = DType::kQ4_K;  // blocks of 256, rows of 32
  Model model = load_model(ctx_, (kModels / "smollm2").string(), options);
  EXPECT_EQ(model.weights.blocks[0].q.dtype(), DType::kF32);  // as stored
  convert_weights(ctx_, model, DType::kQ5_0, true);
  EXPECT_EQ(model.weights.blocks[0].q.dtype(), DType::kQ5_0);
  const auto convert = [&](bool keep) {
    try {
      convert_weights(ctx_, model, DType::kQ4_K, keep);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("converted");
  };
  EXPECT_EQ(convert(true), "converted");
  EXPECT_EQ(model.weights.blocks[0].q.dtype(), DType::kQ5_0);
  EXPECT_EQ(convert(false),
            "'model.embed_tokens.weight' has rows of 32, which is not whole blocks of q4_k (256)");
}

// A block would round it to a number like any other.
TEST(ConvertWeights, WhatIsNotFiniteIsNotRoundedIntoBlocks) {
  Context ctx({.threads = 2});
  for (const float bad : {NAN, INFINITY}) {
    Model model = load_model(ctx, (kModels / "llama3").string());
    Tensor q = Tensor::owned(Device::kCpu, DType::kF32, model.weights.blocks[1].q.shape());
    q.data<float>()[3] = bad;
    model.weights.blocks[1].q = q;
    for (const DType dtype : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1}) {
      Model copy = model;
      try {
        convert_weights(ctx, copy, dtype, true);
        ADD_FAILURE() << name_of(dtype);
      } catch (const UserError& error) {
        EXPECT_NE(std::string(error.what()).find("layers.1.self_attn.q_proj.weight': row 0 holds a number"),
                  std::string::npos)
            << error.what();
      }
    }
  }
}

}  // namespace
}  // namespace fathom
