// Outputs and gradients against PyTorch's: tests/data/gradients, made by tools/make_gradient_goldens.py.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "io/safetensors.h"
#include "ops/attention/rope.h"
#include "ops/attention/self_attention.h"
#include "ops/linear/linear.h"
#include "ops/loss/cross_entropy.h"
#include "ops/rows/accumulate.h"
#include "ops/rows/add_rows.h"
#include "ops/rows/gated_activation.h"
#include "ops/rows/rms_norm.h"
#include "ops/rows/soft_cap.h"
#include "support/test_paths.h"

namespace fathom {
namespace {

class Golden {
 public:
  explicit Golden(const std::string& name)
      : name_(name),
        file_(SafetensorsFile::open(std::string(FATHOM_TEST_DATA) + "/gradients/" + name + ".safetensors")) {}

  const Tensor& operator[](const std::string& tensor) const {
    const Tensor* found = file_->find(tensor);
    if (!found) throw std::runtime_error(name_ + " has no " + tensor);
    return *found;
  }
  bool has(const std::string& tensor) const { return file_->find(tensor) != nullptr; }
  const std::vector<NamedTensor>& tensors() const { return file_->tensors(); }

 private:
  std::string name_;
  std::shared_ptr<const SafetensorsFile> file_;
};

void expect_near(const Tensor& got, const Tensor& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.numel(), want.numel()) << what;
  for (int64_t i = 0; i < want.numel(); ++i) {
    const double expected = want.data<float>()[i];
    ASSERT_NEAR(got.data<float>()[i], expected, tolerance * (1 + std::abs(expected)))
        << what << ", element " << i;
  }
}

using Input = std::function<Tensor(const std::string&)>;

// run(ctx, input) with input(name) a parameter where the file has d_<name>. The loss is Σ out · r, or out.
void check(const std::string& name, double tolerance, std::function<Tensor(Context&, const Input&)> run) {
  const Golden golden(name);
  for (const int threads : {1, 2, 3}) {
    Context ctx({.threads = threads});
    Tape tape(Device::kCpu);
    const TapeScope taped(ctx, tape);
    std::map<std::string, Tensor> inputs;
    const auto input = [&](const std::string& tensor) {
      if (!golden.has("d_" + tensor)) return golden[tensor];
      if (!inputs.count(tensor))
        inputs[tensor] =
            parameter(golden[tensor], Tensor::owned(Device::kCpu, DType::kF32, golden[tensor].shape()));
      return inputs[tensor];
    };
    Tensor out = run(ctx, input);
    expect_near(out, golden["out"], tolerance, name);
    Tensor loss = out;
    if (golden.has("r")) {
      loss = Tensor::owned(Device::kCpu, DType::kF32, {1});
      differentiate(ctx, {&out}, loss, [&](Context& c, const Tensor&) { accumulate(c, out, golden["r"]); });
    }
    tape.backward(ctx, loss);
    size_t gradients = 0;
    for (const NamedTensor& each : golden.tensors()) {
      if (each.name.rfind("d_", 0) != 0) continue;
      const auto found = inputs.find(each.name.substr(2));
      ASSERT_NE(found, inputs.end()) << name << " does not use " << each.name.substr(2);
      expect_near(found->second.gradient()->value, each.tensor, tolerance, name + ": " + each.name);
      ++gradients;
    }
    ASSERT_GT(gradients, 0u) << name;
  }
}

TEST(Gradients, RmsNorm) {
  check("rms_norm", 1e-5,
        [](Context& ctx, const Input& in) { return rms_norm(ctx, in("x"), in("weight"), {.eps = 1e-5f}); });
}

TEST(Gradients, Rope) {
  check("rope", 1e-5, [](Context& ctx, const Input& in) {
    return rope(ctx, in("x"), in("positions"), in("inverse_frequency"));
  });
}

TEST(Gradients, GatedActivations) {
  check("silu_product", 1e-5, [](Context& ctx, const Input& in) {
    return gated_activation(ctx, in("gate"), in("up"), Activation::kSilu);
  });
  check("gelu_product", 1e-5, [](Context& ctx, const Input& in) {
    return gated_activation(ctx, in("gate"), in("up"), Activation::kGeluTanh);
  });
}

TEST(Gradients, SoftCap) {
  check("soft_cap", 1e-5, [](Context& ctx, const Input& in) { return soft_cap(ctx, in("x"), 5.0f); });
}

TEST(Gradients, Losses) {
  check("cross_entropy", 1e-5, [](Context& ctx, const Input& in) {
    return cross_entropy(ctx, in("logits"), in("targets"), in("weights"));
  });
  check("kl_divergence", 1e-5, [](Context& ctx, const Input& in) {
    return kl_divergence(ctx, in("teacher"), in("student"), in("weights"));
  });
}

TEST(Gradients, Attention) {
  check("attention", 2e-5, [](Context& ctx, const Input& in) {
    return self_attention(ctx, in("q"), in("k"), in("v"), in("key_bias"), RowSet::all(9), RowSet::all(9),
                          in("positions"), in("sequence"), {.scale = 0.3f, .soft_cap = 2.0f});
  });
}

// transformers' LlamaDecoderLayer: every op of the model's block together.
TEST(Gradients, LlamaBlock) {
  check("llama_block", 5e-5, [](Context& ctx, const Input& in) {
    constexpr int64_t kRows = 6, kDim = 8;
    const RowSet all = RowSet::all(kRows);
    const std::vector<int32_t> order{0, 1, 2, 3, 4, 5}, zeros(kRows);
    const Tensor positions = Tensor::from(ctx, order, {kRows}), sequence = Tensor::from(ctx, zeros, {kRows});
    Tensor h = in("h");
    const Tensor x = rms_norm(ctx, h, in("input_layernorm.weight"), {.eps = 1e-5f});
    const auto heads = [&](const char* weight) {
      const Tensor rows = linear(ctx, x, in(weight));
      return rows.reshape({kRows, rows.dim(1) / kDim, kDim});
    };
    const auto turned = [&](const char* weight) {
      return rope(ctx, heads(weight), positions, in("inverse_frequency"));
    };
    const Tensor attended =
        self_attention(ctx, turned("self_attn.q_proj.weight"), turned("self_attn.k_proj.weight"),
                       heads("self_attn.v_proj.weight"), {}, all, all, positions, sequence,
                       {.scale = 1.0f / std::sqrt(static_cast<float>(kDim))});
    add_rows_to(ctx, h, all, linear(ctx, attended, in("self_attn.o_proj.weight")));
    const Tensor y = rms_norm(ctx, h, in("post_attention_layernorm.weight"), {.eps = 1e-5f});
    const Tensor gated = gated_activation(ctx, linear(ctx, y, in("mlp.gate_proj.weight")),
                                          linear(ctx, y, in("mlp.up_proj.weight")), Activation::kSilu);
    add_rows_to(ctx, h, all, linear(ctx, gated, in("mlp.down_proj.weight")));
    return h;
  });
}

}  // namespace
}  // namespace fathom
