// Every method, and a small model whose rows are whole quantised blocks.
#pragma once

#include <gtest/gtest.h>

#include "skip/methods.h"
#include "skip/tiny_model_test.h"

namespace fathom {

inline ModelConfig blocks_config() {
  ModelConfig c = tiny_config();
  c.heads = 2;
  c.kv_heads = 1;
  c.head_dim = 32;
  c.ffn_width = 64;
  c.attention_scale = 1.0f / std::sqrt(32.0f);
  return c;
}

// As recipes name them, each once and some a second time with other switches.
inline std::vector<std::string> every_method() {
  std::vector<std::string> all;
  for (const MethodEntry& method : methods()) {
    const char* extra = method.name == "mind_skip" ? R"(, "pool": "prefix:4")" : "";
    all.push_back(R"({"name": ")" + std::string(method.name) + "\"" + extra + "}");
  }
  all.emplace_back(R"({"name": "mind_skip", "level": "token", "units": "block"})");
  all.emplace_back(R"({"name": "calm", "confidence": "similarity"})");
  all.emplace_back(R"({"name": "gate_skip", "copy_kv": true, "two_stage": true})");
  return all;
}

// For INSTANTIATE_TEST_SUITE_P.
inline std::string method_test_name(const testing::TestParamInfo<std::string>& each) {
  std::string name = std::to_string(each.index) + "_";
  for (const char c : each.param) {
    if (std::isalnum(static_cast<unsigned char>(c))) name += c;
  }
  return name;
}

}  // namespace fathom
