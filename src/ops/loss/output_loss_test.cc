#include "ops/loss/output_loss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "ops/kernels/gpu_test.h"
#include "ops/kernels/kept_rows_test.h"
#include "ops/kernels/op_case.h"
#include "ops/linear/linear.h"
#include "ops/loss/cross_entropy.h"
#include "ops/rows/accumulate.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/soft_cap.h"
#include "quant/formats.h"
#include "quant/half.h"

namespace fathom {
namespace {

constexpr int64_t kPieces = 1;  // logits at once: pieces of 128 rows

struct LossCase {
  int64_t rows = 5, vocab = 11, width = 7;
  DType weight = DType::kF32;
  float cap = 0;
  int64_t at_once = kLogitsAtOnce;
  bool compacted = false;
};

std::string name_of(const LossCase& c) {
  return to_string({c.rows, c.vocab, c.width}) + " " + fathom::name_of(c.weight) +
         (c.cap > 0 ? ", capped" : "") + (c.compacted ? ", compacted" : "") +
         (c.at_once < kLogitsAtOnce ? ", in pieces" : "");
}

// The definition of a row's logits, and their logarithmic softmax.
std::vector<double> log_probs(const Tensor& x, const std::vector<float>& weight, float cap, int64_t row) {
  const int64_t width = x.dim(1), vocab = std::ssize(weight) / width;
  std::vector<double> y(static_cast<size_t>(vocab));
  for (int64_t v = 0; v < vocab; ++v) {
    double sum = 0;
    for (int64_t i = 0; i < width; ++i)
      sum += number(x, row * width + i) * double{weight[static_cast<size_t>(v * width + i)]};
    y[static_cast<size_t>(v)] = cap > 0 ? double{cap} * std::tanh(sum / double{cap}) : sum;
  }
  const double largest = *std::max_element(y.begin(), y.end());
  double sum = 0;
  for (const double each : y) sum += std::exp(each - largest);
  for (double& each : y) each -= largest + std::log(sum);
  return y;
}

std::vector<float> decoded_rows(const Tensor& weight) {
  std::vector<float> values(static_cast<size_t>(weight.numel()));
  const int64_t width = weight.dim(1), bytes = row_bytes(weight.dtype(), width);
  for (int64_t r = 0; r < weight.dim(0); ++r)
    decode_row(weight.dtype(), weight.data<std::byte>() + r * bytes, values.data() + r * width, width);
  return values;
}

// bf16 products round x, and the gradient of the logits.
OpTolerance tolerance(DType weight) {
  if (weight == DType::kF32) return {.forward = 3e-6f, .grad = 3e-5f};
  return {.forward = 5e-2f, .grad = 5e-2f};
}

// Row r of the tensors, or of those that are kept.
template <class Fn>
void each_row(const LossCase& c, Fn fn) {
  for (int64_t r = 0; r < c.rows; ++r)
    if (!c.compacted || is_third(r)) fn(r);
}

Tensor some(Context& ctx, const LossCase& c, const Tensor& x) {
  return c.compacted ? gather_rows(ctx, x, every_third(ctx, c.rows)) : x;
}

// Inputs: x, weight, targets, weights.
OpCase entropy_case(const LossCase& c) {
  return {.name = "output_cross_entropy " + name_of(c),
          .inputs = {{{c.rows, c.width}},
                     {{c.vocab, c.width}, c.weight},
                     {{c.rows}, DType::kI32, 1.0f, static_cast<int32_t>(c.vocab)},
                     {{c.rows}, DType::kF32, 3.0f / std::sqrt(static_cast<float>(c.rows + 1))}},
          .run =
              [=](Context& ctx, std::span<const Tensor> in) {
                return output_cross_entropy(ctx, {some(ctx, c, in[0]), in[1], c.cap}, some(ctx, c, in[2]),
                                            some(ctx, c, in[3]), c.at_once);
              },
          .reference =
              [=](std::span<const Tensor> in) {
                const std::vector<float> weight = decoded_rows(in[1]);
                double sum = 0;
                each_row(c, [&](int64_t r) {
                  const auto target = static_cast<size_t>(in[2].data<int32_t>()[r]);
                  sum -= number(in[3], r) * log_probs(in[0], weight, c.cap, r)[target];
                });
                return std::vector<double>{sum};
              },
          .tol = tolerance(c.weight),
          .differentiable = c.weight == DType::kF32 ? std::vector<size_t>{0, 1} : std::vector<size_t>{0},
          .row_invariant = false};
}

// Inputs: the teacher's x and weight, the student's, weights. The widths differ.
OpCase kl_case(const LossCase& c, float teacher_cap = 0) {
  return {.name = "output_kl " + name_of(c),
          .inputs = {{{c.rows, c.width + 2}},
                     {{c.vocab, c.width + 2}},
                     {{c.rows, c.width}},
                     {{c.vocab, c.width}, c.weight},
                     {{c.rows}, DType::kF32, 3.0f / std::sqrt(static_cast<float>(c.rows + 1))}},
          .run =
              [=](Context& ctx, std::span<const Tensor> in) {
                return output_kl(ctx, {some(ctx, c, in[0]), in[1], teacher_cap},
                                 {some(ctx, c, in[2]), in[3], c.cap}, some(ctx, c, in[4]), c.at_once);
              },
          .reference =
              [=](std::span<const Tensor> in) {
                const std::vector<float> teacher = decoded_rows(in[1]), student = decoded_rows(in[3]);
                double sum = 0;
                each_row(c, [&](int64_t r) {
                  const std::vector<double> t = log_probs(in[0], teacher, teacher_cap, r),
                                            s = log_probs(in[2], student, c.cap, r);
                  for (size_t i = 0; i < t.size(); ++i)
                    sum += number(in[4], r) * std::exp(t[i]) * (t[i] - s[i]);
                });
                return std::vector<double>{sum};
              },
          .tol = tolerance(c.weight),
          .differentiable = c.weight == DType::kF32 ? std::vector<size_t>{2, 3} : std::vector<size_t>{2},
          .row_invariant = false};
}

const std::vector<LossCase> kCases{
    {},
    {.rows = 3, .vocab = 1, .width = 4},
    {.rows = 0, .vocab = 8, .width = 4},
    {.rows = 6, .vocab = 132, .width = 16, .cap = 3.0f},
    {.rows = 9, .vocab = 45, .width = 8, .cap = 2.0f, .compacted = true},
    {.rows = 300, .vocab = 36, .width = 5, .at_once = kPieces},
    {.rows = 300, .vocab = 37, .width = 5, .cap = 4.0f, .at_once = kPieces},
    {.rows = 700, .vocab = 12, .width = 4, .at_once = kPieces, .compacted = true},
    {.rows = 7, .vocab = 40, .width = 32, .weight = DType::kBF16},
    {.rows = 300, .vocab = 44, .width = 16, .weight = DType::kBF16, .cap = 5.0f, .at_once = kPieces},
};

TEST(OutputCrossEntropy, MatchesTheDefinition) {
  for (const LossCase& each : kCases) check(entropy_case(each));
  check(entropy_case({.rows = 2, .vocab = 5003, .width = 3}));
  check(entropy_case({.rows = 2, .vocab = 8200, .width = 3}));
}

TEST(OutputKl, MatchesTheDefinition) {
  for (const LossCase& each : kCases) check(kl_case(each));
  check(kl_case({.rows = 4, .vocab = 24, .width = 6}, 3.0f));
  check(kl_case({.rows = 2, .vocab = 5003, .width = 3}));
}

// Against linear(), soft_cap(), cross_entropy() and kl_divergence(), where a weight may be of any format and
// learn in bf16.
struct LossScene {
  DType type = DType::kF32;
  bool kl = false, frozen = false, x_learns = true;
  float cap = 0;
  int64_t rows = 300, vocab = 70, width = 64, at_once = kPieces;
  int32_t present = -1;                // rows that are there; −1: all, not counted
  bool states_bf16 = false;            // x is given in bf16 (a GPU's alone)
  float d = 1;                         // gradient of the loss
  int32_t idle_from = 0, idle_to = 0;  // rows of weight 0
};

struct LossResult {
  float loss = 0;
  std::vector<float> dx, dw;
  Work work;
};

std::vector<float> normal_values(int64_t n, uint32_t seed, float scale = 1) {
  Rng rng(71, {seed, 0, 0});
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = rng.normal() * scale;
  return values;
}

Tensor encoded(Context& ctx, const std::vector<float>& values, const Shape& shape, DType type) {
  Tensor t = Tensor::owned(Device::kCpu, type, shape);
  const int64_t width = shape.last(), bytes = row_bytes(type, width);
  for (int64_t r = 0; r < shape[0]; ++r)
    encode_row(type, values.data() + r * width, t.data<std::byte>() + r * bytes, width);
  return t.to(ctx, ctx.device());
}

Tensor composed_logits(Context& ctx, const OutputRows& rows) {
  const Tensor logits = linear(ctx, rows.x, rows.weight);
  return rows.soft_cap > 0 ? soft_cap(ctx, logits, rows.soft_cap) : logits;
}

// x's values are those of bf16: whether they are rounded makes no difference.
OutputRows rows_of(Context& ctx, const LossScene& s, uint32_t seed, const Tensor& count) {
  std::vector<float> values = normal_values(s.rows * s.width, seed);
  for (float& value : values) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    bits &= 0xffff0000u;
    std::memcpy(&value, &bits, sizeof bits);
  }
  if (s.present >= 0) std::fill(values.begin() + s.present * s.width, values.end(), NAN);
  Tensor x = encoded(ctx, values, {s.rows, s.width}, s.states_bf16 ? DType::kBF16 : DType::kF32);
  if (count) x = x.counted_by(count);
  return {x, encoded(ctx, normal_values(s.vocab * s.width, seed + 1, 0.2f), {s.vocab, s.width}, s.type),
          s.cap};
}

// Every fifth row, and those from idle_from to before idle_to, have weight 0 and a target that is none.
Tensor loss_of(Context& ctx, const LossScene& s, const OutputRows& student, const Tensor& count,
               bool composed) {
  std::vector<int32_t> targets;
  std::vector<float> weights = normal_values(s.rows, 9, 0.1f);
  for (int32_t r = 0; r < s.rows; ++r) {
    const bool idle = r % 5 == 2 || (r >= s.idle_from && r < s.idle_to);
    targets.push_back(idle ? -100 : static_cast<int32_t>(r * 7 % s.vocab));
    if (idle) weights[static_cast<size_t>(r)] = 0;
  }
  const Tensor target = ints(ctx, targets), weight = floats(ctx, weights);
  if (!s.kl) {
    return composed ? cross_entropy(ctx, composed_logits(ctx, student), target, weight)
                    : output_cross_entropy(ctx, student, target, weight, s.at_once);
  }
  OutputRows teacher;
  {
    const RecordingScope quiet(ctx, false);
    teacher = rows_of(ctx, s, 50, count);
    if (composed) teacher.x = composed_logits(ctx, teacher);
  }
  return composed ? kl_divergence(ctx, teacher.x, composed_logits(ctx, student), weight)
                  : output_kl(ctx, teacher, student, weight, s.at_once);
}

// Of f32 or bf16.
std::vector<float> host_floats(Context& ctx, const Tensor& tensor) {
  if (tensor.dtype() == DType::kF32) return host_values(ctx, tensor);
  const Tensor here = tensor.to(ctx, Device::kCpu);
  std::vector<float> values(static_cast<size_t>(here.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = f32_of_bf16(here.data<uint16_t>()[i]);
  return values;
}

LossResult run(Context& ctx, const LossScene& s, bool composed) {
  Tape tape(ctx.device());
  const TapeScope taped(ctx, tape);
  const Work before = ctx.counters().total();
  const Tensor count = s.present >= 0 ? ints(ctx, {s.present}) : Tensor();
  OutputRows student = rows_of(ctx, s, 1, count);
  Tensor dw = Tensor::owned(ctx.device(), DType::kF32, student.weight.shape());
  if (s.x_learns) student.x = student.x.with_gradient(std::make_shared<Gradient>());
  if (!s.frozen) student.weight = parameter(student.weight, dw);
  const Tensor out = loss_of(ctx, s, student, count, composed);
  LossResult result;
  result.loss = host_values(ctx, out)[0];
  accumulate(ctx, out, floats(ctx, {s.d}));
  tape.backward(ctx, floats(ctx, {0.0f}).with_gradient(std::make_shared<Gradient>()));
  if (s.x_learns && student.x.gradient()->value) {
    result.dx = host_floats(ctx, student.x.gradient()->value);
    if (s.present >= 0) result.dx.resize(static_cast<size_t>(s.present * s.width));
  }
  result.dw = host_values(ctx, dw);
  result.work = ctx.counters().total() - before;
  return result;
}

void expect_near(const std::vector<float>& got, const std::vector<float>& want, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double far = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double apart = double{got[i]} - double{want[i]};
    far += apart * apart;
    size += double{want[i]} * double{want[i]};
    ASSERT_TRUE(std::isfinite(got[i])) << what << ", element " << i;
  }
  EXPECT_LE(std::sqrt(far), tolerance * std::sqrt(size)) << what;
}

void compare(const LossScene& s, const std::string& what,
             const std::vector<Device>& devices = devices_to_check()) {
  Context cpu({.threads = 2});
  const LossResult want = run(cpu, s, true);
  for (const Device device : devices) {
    Context ctx({.device = device, .threads = 2});
    const LossResult got = run(ctx, s, false);
    const std::string where = what + " on " + fathom::name_of(device);
    EXPECT_EQ(got.work.madds, want.work.madds) << where;
    EXPECT_EQ(got.work.weight_bytes, want.work.weight_bytes) << where;
    if (device == Device::kCuda) {
      const bool exact = s.type == DType::kF32, bf16 = s.type == DType::kBF16;
      const double tolerance = exact ? 1e-5 : bf16 ? 1e-2 : 5e-2;  // the CPU rounds x to int8 for the others
      EXPECT_NEAR(got.loss, want.loss, (exact ? 5e-6 : tolerance) * (1 + std::abs(want.loss))) << where;
      expect_near(got.dx, want.dx, tolerance, where + ", dx");
      expect_near(got.dw, want.dw, tolerance, where + ", dW");
      const LossResult again = run(ctx, s, false);
      EXPECT_TRUE(again.loss == got.loss && again.dx == got.dx && again.dw == got.dw) << where;
    } else {
      EXPECT_EQ(got.loss, want.loss) << where;
      EXPECT_EQ(got.dx, want.dx) << where;
      EXPECT_EQ(got.dw, want.dw) << where;
    }
  }
}

TEST(OutputLoss, IsThatOfTheLogits) {
  for (const bool kl : {false, true}) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      const std::string what = std::string(kl ? "kl " : "ce ") + fathom::name_of(type);
      compare({.type = type, .kl = kl}, what);
      compare({.type = type, .kl = kl, .vocab = 71, .d = -2.5f}, what + ", times −2.5");
      compare({.type = type, .kl = kl, .cap = 3.0f, .vocab = 72}, what + ", whole packs, capped");
      compare({.type = type, .kl = kl, .frozen = true, .cap = 2.0f}, what + ", frozen, capped");
      compare({.type = type, .kl = kl, .x_learns = false, .d = 0.5f}, what + ", x does not learn");
      compare({.type = type, .kl = kl, .at_once = kLogitsAtOnce}, what + ", all at once");
    }
    for (const DType type : {DType::kQ8_0, DType::kF16})
      compare({.type = type, .kl = kl, .frozen = true}, std::string("frozen ") + fathom::name_of(type));
  }
}

TEST(OutputLoss, RowsThatAreNotThereAreNeverRead) {
  for (const bool kl : {false, true}) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      for (const int32_t present : {0, 1, 128, 129, 299, 300})
        compare({.type = type, .kl = kl, .present = present},
                std::string(kl ? "kl " : "ce ") + fathom::name_of(type) + ", " + std::to_string(present));
    }
  }
}

// A loss that is only looked at.
TEST(OutputLoss, WithoutATapeItHasNoGradient) {
  for (const Device device : devices_to_check()) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      Context ctx({.device = device, .threads = 2});
      const LossScene scene{.type = type};
      const OutputRows rows = rows_of(ctx, scene, 1, {});
      const Work before = ctx.counters().total();
      const Tensor out = loss_of(ctx, scene, rows, {}, false);
      EXPECT_FALSE(out.gradient());
      EXPECT_EQ((ctx.counters().total() - before).madds, uint64_t{300} * 70 * 64);
      const float want = host_values(ctx, loss_of(ctx, scene, rows, {}, true))[0];
      EXPECT_NEAR(host_values(ctx, out)[0], want, (type == DType::kF32 ? 5e-6 : 1e-2) * (1 + std::abs(want)));
    }
  }
}

// On a GPU x may be bf16: the products round it anyway.
TEST(OutputLoss, CudaTakesStatesInBf16) {
  for (const Device device : devices_to_check()) {
    if (device != Device::kCuda) continue;
    for (const bool kl : {false, true}) {
      for (const int32_t present : {-1, 200}) {
        Context ctx({.device = device, .threads = 1});
        const LossScene rounded{.type = DType::kBF16, .kl = kl, .present = present, .states_bf16 = true};
        LossScene plain = rounded;
        plain.states_bf16 = false;
        const LossResult got = run(ctx, rounded, false), want = run(ctx, plain, false);
        EXPECT_EQ(got.loss, want.loss);
        expect_near(got.dx, want.dx, 4e-3, "dx, rounded to bf16");
        EXPECT_EQ(got.dw, want.dw);
      }
    }
  }
}

// More rows than an H200 runs blocks, longer than a block's memory: a block takes one row after another and
// has a part of each there, none where rows are no whole packs. Few rows have a weight, so that the CPU is
// quick.
TEST(OutputLoss, CudaTakesManyLongRows) {
  if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  const auto check_long = [](const char* what, LossScene scene) {
    scene.rows = 140, scene.width = 8, scene.at_once = kLogitsAtOnce;
    scene.idle_from = 6, scene.idle_to = 134;
    compare(scene, what, {Device::kCuda});
  };
  check_long("ce f32", {.vocab = 120000});
  check_long("ce bf16, capped", {.type = DType::kBF16, .cap = 3.0f, .vocab = 120000});
  check_long("kl f32, capped", {.kl = true, .cap = 3.0f, .vocab = 60000});
  check_long("kl bf16", {.type = DType::kBF16, .kl = true, .vocab = 60000});
  check_long("ce f32, capped, no whole packs", {.cap = 3.0f, .vocab = 60001});
  check_long("kl bf16, capped, no whole packs",
             {.type = DType::kBF16, .kl = true, .cap = 3.0f, .vocab = 60003});
}

TEST(OutputLoss, CudaReportsATargetOutsideTheVocabulary) {
  for (const Device device : devices_to_check()) {
    Context ctx({.device = device, .threads = 1});
    const OutputRows rows = rows_of(ctx, {.rows = 2}, 1, {});
    for (const int32_t target : {-1, 70})
      EXPECT_NE(
          refusal([&] {
            host_values(ctx, output_cross_entropy(ctx, rows, ints(ctx, {0, target}), floats(ctx, {1, 1})));
          }),
          "");
  }
}

TEST(OutputLoss, NamesWhatWasExpected) {
  Context ctx({.threads = 1});
  const auto owned = [](const Shape& shape, DType type = DType::kF32) {
    return Tensor::owned(Device::kCpu, type, shape);
  };
  const Tensor x = owned({2, 3}), ones = floats(ctx, {1, 1}), targets = ints(ctx, {0, 1});
  const auto refused = [&](const OutputRows& rows) {
    return refusal([&] { output_cross_entropy(ctx, rows, targets, ones); });
  };
  EXPECT_EQ(refused({{}, owned({4, 3})}),
            "output_cross_entropy: x must be f32 or bf16 (rows, width), got nothing ()");
  EXPECT_EQ(refused({x, owned({4, 2})}),
            "output_cross_entropy: weight must be dense (vocab, 3) with vocab above 0, got f32 (4, 2)");
  EXPECT_EQ(refused({owned({2, 3}, DType::kBF16), owned({4, 3})}),
            "output_cross_entropy: x must be f32 where the weight is, got bf16");
  EXPECT_EQ(refused({x, owned({4, 3}), -1.0f}),
            "output_cross_entropy: soft_cap must be above 0, or 0 for none, got -1");
  EXPECT_EQ(refusal([&] {
              output_kl(ctx, {owned({3, 3}), owned({5, 3})}, {x, owned({4, 3})}, ones);
            }),
            "output_kl: the teacher must have 2 rows and a vocabulary of 4, got 3 and 5");
}

}  // namespace
}  // namespace fathom
