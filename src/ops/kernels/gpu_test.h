// What tests that need a GPU share: where there is none they are skipped.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "tensor/context.h"

namespace fathom {

// Empty where there is one.
inline std::string why_no_gpu() {
  try {
    const Context ctx({.device = Device::kCuda, .threads = 1});
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

class Cuda : public testing::Test {
 protected:
  explicit Cuda(uint64_t seed = 42) : rng_(seed) {}

  void SetUp() override {
    try {
      gpu_ = std::make_unique<Context>(ContextOptions{.device = Device::kCuda, .threads = 1});
    } catch (const UserError& error) {
      GTEST_SKIP() << error.what();
    }
  }

  std::vector<float> normals(int64_t count, float scale = 1.0f, float mean = 0.0f) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = mean + rng_.normal() * scale;
    return values;
  }

  std::unique_ptr<Context> gpu_;
  Context cpu_{{.threads = 2}};
  Rng rng_;
};

}  // namespace fathom
