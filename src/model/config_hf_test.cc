// config.json as the families publish it must be read; what changes the computation and is not known must be
// refused by name.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/fields.h"
#include "model/config.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

struct Published {
  const char *name, *text;
};

// As published, in the words of the files themselves.
const Published kPublished[] = {
    {"Llama-2-7b-hf",
     R"({"_name_or_path": "meta-llama/Llama-2-7b-hf", "architectures": ["LlamaForCausalLM"], "bos_token_id": 1,
      "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008,
      "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
      "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null, "tie_word_embeddings": false,
      "torch_dtype": "float16", "transformers_version": "4.31.0.dev0", "use_cache": true, "vocab_size": 32000})"},
    {"Llama-3.1-8B-Instruct",
     R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096,
      "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false,
      "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
      "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0, "tie_word_embeddings": false,
      "torch_dtype": "bfloat16", "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 128256})"},
    {"Llama-3.2-1B",
     R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "bos_token_id": 128000, "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
      "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
      "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1,
      "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
      "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0, "tie_word_embeddings": true,
      "torch_dtype": "bfloat16", "transformers_version": "4.45.0.dev0", "use_cache": true, "vocab_size": 128256})"},
    {"Mistral-7B-v0.1",
     R"({"architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
      "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
      "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
      "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
      "transformers_version": "4.34.0.dev0", "use_cache": true, "vocab_size": 32000})"},
    {"Mistral-7B-v0.3",
     R"({"architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
      "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
      "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
      "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null,
      "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.42.0.dev0", "use_cache": true,
      "vocab_size": 32768})"},
    {"SmolLM2-135M-Instruct",
     R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664,
      "intermediate_size": 1536, "is_llama_config": true, "max_position_embeddings": 8192, "mlp_bias": false, "model_type": "llama",
      "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3, "pad_token_id": 2, "pretraining_tp": 1,
      "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000, "tie_word_embeddings": true,
      "torch_dtype": "bfloat16", "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
      "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 49152})"},
    {"SmolLM2-1.7B",
     R"({"_name_or_path": "checkpoints", "architectures": ["LlamaForCausalLM"], "attention_bias": false,
      "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 2048,
      "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 8192, "mlp_bias": false,
      "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 24, "num_key_value_heads": 32, "pretraining_tp": 1,
      "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 130000, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
      "transformers_version": "4.40.1", "use_cache": true, "vocab_size": 49152})"},
    {"Qwen2.5-0.5B",
     R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
      "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
      "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
      "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
      "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.40.1", "use_cache": true,
      "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936})"},
    {"Qwen3-0.6B",
     R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
      "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
      "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
      "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
      "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})"},
    {"OLMo-2-0425-1B",
     R"({"architectures": ["Olmo2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
      "max_position_embeddings": 4096, "model_type": "olmo2", "num_attention_heads": 16, "num_hidden_layers": 16,
      "num_key_value_heads": 16, "pad_token_id": 100277, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 500000,
      "tie_word_embeddings": false, "torch_dtype": "float32", "transformers_version": "4.47.0", "use_cache": false,
      "vocab_size": 100352})"},
    {"gemma-2-2b",
     R"({"architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1,
      "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
      "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "initializer_range": 0.02, "intermediate_size": 9216,
      "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 8, "num_hidden_layers": 26,
      "num_key_value_heads": 4, "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
      "sliding_window": 4096, "torch_dtype": "float32", "transformers_version": "4.42.4", "use_cache": true,
      "vocab_size": 256000})"},
    {"gemma-3-1b-it",
     R"({"architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "attn_logit_softcapping": null, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": [1, 106],
      "final_logit_softcapping": null, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152,
      "initializer_range": 0.02, "intermediate_size": 6912, "max_position_embeddings": 32768, "model_type": "gemma3_text",
      "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1, "pad_token_id": 0,
      "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000, "rope_scaling": null,
      "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6, "torch_dtype": "bfloat16",
      "transformers_version": "4.50.0.dev0", "use_cache": true, "vocab_size": 262144})"},
    {"Yarn-Llama-2-7b-64k",
     R"({"architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
      "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 65536,
      "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "pad_token_id": 0, "rms_norm_eps": 1e-05,
      "rope_scaling": {"factor": 16.0, "finetuned": true, "original_max_position_embeddings": 4096, "type": "yarn"},
      "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.31.0", "use_cache": true,
      "vocab_size": 32000})"},
};

Json published(const std::string& name) {
  for (const Published& one : kPublished) {
    if (name == one.name) return Json::parse(one.text);
  }
  ADD_FAILURE() << name;
  return {};
}

std::string refusal(const Json& json) {
  try {
    config_from_hf(json.dump(), "config.json");
  } catch (const UserError& error) {
    return error.what();
  }
  return "nothing was refused";
}

std::string refusal(const char* name, const Json& changes) {
  Json json = published(name);
  json.update(changes);
  return refusal(json);
}

TEST(ConfigHf, PublishedConfigsAreReadAndComeBack) {
  for (const Published& one : kPublished) {
    SCOPED_TRACE(one.name);
    ModelConfig config = config_from_hf(one.text, one.name);
    ModelConfig back = config_from_hf(config_to_hf(config, "float32"), "written");
    EXPECT_EQ(fields_to_json(fields_of(back)), fields_to_json(fields_of(config)));
  }
}

TEST(ConfigHf, PublishedConfigsMeanWhatTheyMean) {
  const auto read = [](const char* name) { return config_from_hf(published(name).dump(), name); };
  EXPECT_EQ(read("Llama-2-7b-hf").rope.theta, 10000);
  EXPECT_EQ(read("Llama-3.1-8B-Instruct").eos, (std::vector<int32_t>{128001, 128008, 128009}));
  EXPECT_EQ(read("Llama-3.1-8B-Instruct").rope.scaling, RopeScaling::kLlama3);
  EXPECT_TRUE(read("Llama-3.2-1B").tied);
  EXPECT_EQ(read("Mistral-7B-v0.1").windows, std::vector<int32_t>(32, 4096));
  EXPECT_EQ(read("Mistral-7B-v0.3").windows, std::vector<int32_t>(32, 0));
  EXPECT_EQ(read("SmolLM2-135M-Instruct").head_dim, 64);
  EXPECT_TRUE(read("Qwen2.5-0.5B").qkv_bias);
  EXPECT_FALSE(read("Qwen2.5-0.5B").attention_output_bias);
  EXPECT_EQ(read("Qwen2.5-0.5B").windows, std::vector<int32_t>(24, 0));
  EXPECT_EQ(read("Qwen3-0.6B").qk_norm, QkNorm::kPerHead);
  EXPECT_EQ(read("OLMo-2-0425-1B").norm_placement, NormPlacement::kAfter);
  EXPECT_EQ(read("OLMo-2-0425-1B").bos, -1);
  EXPECT_EQ(read("gemma-2-2b").windows[0], 4096);
  EXPECT_EQ(read("gemma-2-2b").windows[1], 0);
  EXPECT_TRUE(read("gemma-2-2b").tied);
  EXPECT_EQ(read("gemma-3-1b-it").attention_soft_cap, 0);
  EXPECT_EQ(read("gemma-3-1b-it").windows[5], 0);
  EXPECT_EQ(read("gemma-3-1b-it").windows[6], 512);
  EXPECT_EQ(read("gemma-3-1b-it").local_rope.theta, 10000);
  EXPECT_NEAR(read("Yarn-Llama-2-7b-64k").rope.attention_factor, 0.1 * std::log(16.0) + 1, 1e-6);
}

// null is not the same as nothing said where the architecture has a default.
TEST(ConfigHf, NullSwitchesOffWhatIsUsual) {
  Json gemma = published("gemma-2-2b");
  gemma["attn_logit_softcapping"] = nullptr;
  EXPECT_EQ(config_from_hf(gemma.dump(), "c").attention_soft_cap, 0);
  gemma.erase("attn_logit_softcapping");
  gemma.erase("sliding_window");
  EXPECT_EQ(config_from_hf(gemma.dump(), "c").attention_soft_cap, 50);
  EXPECT_EQ(config_from_hf(gemma.dump(), "c").windows[0], 4096);
  Json mistral = published("Mistral-7B-v0.1");
  mistral.erase("sliding_window");
  EXPECT_EQ(config_from_hf(mistral.dump(), "c").windows[0], 4096);
}

struct Refusal {
  const char* model;
  Json changes;
  const char* says;
};

TEST(ConfigHf, WhatIsNotComputedIsRefusedByName) {
  const Refusal cases[] = {
      {"Llama-3.2-1B",
       {{"model_type", "mixtral"}},
       "config.json: architecture 'mixtral' is not supported (llama, mistral, qwen2,"},
      {"Llama-3.2-1B", {{"model_type", nullptr}}, "architecture '' is not supported"},
      {"Llama-3.2-1B", {{"model_type", 7}}, "'model_type' must be a string, got 7"},
      {"gemma-3-1b-it",
       {{"model_type", "gemma3"}, {"text_config", Json::object()}},
       "save its text model alone"},
      {"Llama-3.2-1B", {{"num_local_experts", 8}}, "the key 'num_local_experts' is not known"},
      {"Llama-3.2-1B", {{"residual_multiplier", 0.2}}, "the key 'residual_multiplier' is not known"},
      {"Llama-3.2-1B", {{"sliding_windows", 5}}, "the key 'sliding_windows' is not known"},
      {"Llama-3.2-1B",
       {{"rope_interleaved", true}},
       "'rope_interleaved': true is not supported (only false)"},
      {"Llama-3.2-1B", {{"partial_rotary_factor", 0.5}}, "'partial_rotary_factor': 0.5 is not supported"},
      {"Llama-3.2-1B",
       {{"hidden_act", "relu"}},
       "activation 'relu' is not supported (silu, gelu_pytorch_tanh)"},
      {"gemma-2-2b", {{"hidden_activation", "gelu"}}, "activation 'gelu' is not supported"},
      {"gemma-3-1b-it",
       {{"use_bidirectional_attention", true}},
       "'use_bidirectional_attention': true is not supported"},
      {"OLMo-2-0425-1B", {{"clip_qkv", 8}}, "'clip_qkv': 8 is not supported"},
      {"Qwen3-0.6B", {{"attention_bias", true}}, "'attention_bias': true is not supported"},
      {"Qwen3-0.6B", {{"num_key_value_heads", nullptr}}, "the key 'num_key_value_heads' is missing"},
      {"Llama-3.2-1B",
       {{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2}}}},
       "RoPE scaling 'dynamic' is not supported"},
      {"Llama-3.2-1B",
       {{"rope_scaling", {{"type", "longrope"}}}},
       "RoPE scaling 'longrope' is not supported"},
      {"Llama-3.2-1B",
       {{"rope_scaling", {{"type", "linear"}, {"factor", 2}, {"odd", 1}}}},
       "rope_scaling: the key 'odd' is not known"},
      {"Llama-3.2-1B", {{"rope_scaling", {{"type", "linear"}}}}, "the RoPE factor must be above 0"},
      {"Llama-3.2-1B",
       {{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}}}},
       "0 < low_freq_factor < high_freq_factor"},
      {"Llama-3.2-1B", {{"rope_scaling", 3}}, "expected a JSON object, got number"},
      {"Llama-3.2-1B",
       {{"quantization_config", {{"quant_method", "gptq"}, {"bits", 4}}}},
       "weights quantised by 'gptq'"},
      {"Llama-3.2-1B", {{"quantization_config", {{"quant_method", "awq"}}}}, "weights quantised by 'awq'"},
      {"Llama-3.2-1B", {{"quantization_config", {{"quant_method", 4}}}}, "'quant_method' must be a string"},
      {"Llama-3.2-1B", {{"hidden_size", nullptr}}, "the key 'hidden_size' is missing"},
      {"Llama-3.2-1B", {{"hidden_size", "2048"}}, "'hidden_size' must be a whole number, got \"2048\""},
      {"Llama-3.2-1B", {{"hidden_size", 2048.5}}, "'hidden_size' must be a whole number, got 2048.5"},
      {"Llama-3.2-1B", {{"hidden_size", 18446744073709551615u}}, "the width must be between 1 and 1048576"},
      {"Llama-3.2-1B", {{"hidden_size", -1}}, "the width must be between 1 and"},
      {"Llama-3.2-1B", {{"num_hidden_layers", 0}}, "the number of layers must be between 1 and 1024, got 0"},
      {"Llama-3.2-1B",
       {{"num_hidden_layers", 1000000000}},
       "the number of layers must be between 1 and 1024"},
      {"Llama-3.2-1B", {{"num_attention_heads", 0}}, "'num_attention_heads' must be at least 1, got 0"},
      {"Llama-3.2-1B",
       {{"num_key_value_heads", 0}},
       "the number of key/value heads must be between 1 and 32, got 0"},
      {"Llama-3.2-1B", {{"num_key_value_heads", 5}}, "32 heads cannot share 5 key/value heads evenly"},
      {"Llama-3.2-1B", {{"head_dim", 7}}, "the head size must be a multiple of 8, got 7"},
      {"Llama-3.2-1B", {{"vocab_size", -5}}, "the vocabulary must be between 1 and"},
      {"Llama-3.2-1B", {{"rms_norm_eps", -1}}, "the norm's eps must be between 0 and 1"},
      {"Llama-3.2-1B", {{"rope_theta", -3}}, "the RoPE base must be above 0"},
      {"Llama-3.2-1B", {{"rope_theta", 0.5}}, "the RoPE base must be above 1"},
      {"Llama-3.2-1B", {{"tie_word_embeddings", 1}}, "'tie_word_embeddings' must be true or false, got 1"},
      {"Llama-3.2-1B", {{"eos_token_id", "</s>"}}, "'eos_token_id' must be a whole number"},
      {"Llama-3.2-1B", {{"eos_token_id", {1, -7}}}, "'eos_token_id' cannot be the token -7"},
      {"Llama-3.2-1B", {{"bos_token_id", 5000000000}}, "'bos_token_id' cannot be the token 5000000000"},
      {"gemma-2-2b", {{"query_pre_attn_scalar", 0}}, "the attention scale must be above 0 and finite"},
      {"gemma-2-2b", {{"attn_logit_softcapping", -1}}, "a soft-cap must be above 0"},
      {"gemma-3-1b-it", {{"layer_types", {"full_attention"}}}, "'layer_types' must list 26 layers"},
      {"gemma-3-1b-it",
       {{"layer_types", Json(26, "linear_attention")}},
       "layer type \"linear_attention\" is not supported"},
      {"Mistral-7B-v0.1", {{"sliding_window", -4}}, "'sliding_window' must not be negative or huge, got -4"},
  };
  for (const Refusal& one : cases) {
    const std::string message = refusal(one.model, one.changes);
    EXPECT_NE(message.find(one.says), std::string::npos) << one.changes.dump() << "\n" << message;
    EXPECT_EQ(message.rfind("config.json: ", 0), 0u) << message;
  }
}

// Underscored keys and nulls are transformers' own bookkeeping.
TEST(ConfigHf, HarmlessKeysAreNotRefused) {
  Json json = published("Llama-3.2-1B");
  json["_attn_implementation_autoset"] = true;
  json["some_new_key"] = nullptr;
  json["unsloth_fixed"] = true;
  EXPECT_EQ(config_from_hf(json.dump(), "c").layers, 16);
}

TEST(ConfigHf, TextThatIsNoConfigIsRefused) {
  const auto message = [](const std::string& text) {
    try {
      config_from_hf(text, "config.json");
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("nothing was refused");
  };
  for (const char* text : {"", "{", "[1, 2]", "\"llama\"",
                           "{\"model_type\": \"llama\", \"model_type\": \"qwen2\"}", "\xff\xfe{}"}) {
    EXPECT_EQ(message(text).rfind("config.json: ", 0), 0u) << text << ": " << message(text);
  }
  EXPECT_EQ(message(std::string(100000, '[')).rfind("config.json: ", 0), 0u);
}

}  // namespace
}  // namespace fathom
