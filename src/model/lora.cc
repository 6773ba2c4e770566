#include "model/lora.h"

#include <algorithm>
#include <cmath>

#include "base/counters.h"
#include "base/format.h"
#include "base/rng.h"
#include "ops/linear/linear.h"
#include "ops/rows/dropout.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/pointwise.h"

namespace fathom {
namespace {

constexpr uint32_t kStream = 0x10ea;  // keeps these numbers apart from the other initial values
constexpr size_t kMostTogether = 3;   // matrices with one input

struct ProjectionRow {
  std::string_view name, module;
  Tensor BlockWeights::*weight;
  Tensor BlockWeights::*bias;
};
constexpr std::array<ProjectionRow, kProjections> kRows{{
    {"q_proj", "self_attn", &BlockWeights::q, &BlockWeights::q_bias},
    {"k_proj", "self_attn", &BlockWeights::k, &BlockWeights::k_bias},
    {"v_proj", "self_attn", &BlockWeights::v, &BlockWeights::v_bias},
    {"o_proj", "self_attn", &BlockWeights::o, &BlockWeights::o_bias},
    {"gate_proj", "mlp", &BlockWeights::gate, &BlockWeights::gate_bias},
    {"up_proj", "mlp", &BlockWeights::up, &BlockWeights::up_bias},
    {"down_proj", "mlp", &BlockWeights::down, &BlockWeights::down_bias},
}};

const ProjectionRow& row_of(Projection projection) {
  return kRows[static_cast<size_t>(projection)];
}

struct Sides {
  int64_t in, out, rotated_heads;
};
Sides sides_of(const ModelConfig& c, Projection projection) {
  const int64_t q_width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
  switch (projection) {
    case Projection::kQ:
      return {c.width, q_width, c.heads};
    case Projection::kK:
      return {c.width, kv_width, c.kv_heads};
    case Projection::kV:
      return {c.width, kv_width, 0};
    case Projection::kO:
      return {q_width, c.width, 0};
    case Projection::kDown:
      return {c.ffn_width, c.width, 0};
    default:
      return {c.width, c.ffn_width, 0};
  }
}

Tensor normal_matrix(const Shape& shape, float std, uint64_t seed, uint32_t index) {
  Tensor out = Tensor::owned(Device::kCpu, DType::kF32, shape);
  Rng rng(seed, {kStream, index, 0});
  std::generate_n(out.data<float>(), out.numel(), [&] { return std * rng.normal(); });
  return out;
}

// x Aᵀ of the matrices that have factors; the others' stay undefined. Without dropout they share x's
// preparation.
void low_rank(Context& ctx, const ProjectionCall& call, const Tensor& x, std::span<const Projection> which,
              std::span<Tensor> low) {
  const Lora& lora = call.model.lora;
  const auto& block = lora.blocks[static_cast<size_t>(call.layer)];
  std::array<Tensor, kMostTogether> factors, made;
  std::array<size_t, kMostTogether> place{};
  size_t count = 0;
  const bool drops = lora.dropout > 0 && ctx.tape();
  for (size_t i = 0; i < which.size(); ++i) {
    const Tensor& a = block[static_cast<size_t>(which[i])].a;
    if (!a) continue;
    if (drops) {
      const auto stream = static_cast<uint32_t>(call.layer) * static_cast<uint32_t>(kProjections) +
                          static_cast<uint32_t>(which[i]);
      const Tensor dropped =
          dropout(ctx, x, {lora.dropout, lora.seed, stream}, gather_rows(ctx, call.batch.keys, call.rows),
                  gather_rows(ctx, call.batch.positions, call.rows));
      low[i] = linear(ctx, dropped, a);
    } else {
      factors[count] = a;
      place[count++] = i;
    }
  }
  if (count == 0) return;
  linear_group(ctx, x, std::span(factors).first(count), {}, std::span(made).first(count));
  for (size_t i = 0; i < count; ++i) low[place[i]] = made[i];
}

}  // namespace

std::string_view name_of(Projection projection) {
  return row_of(projection).name;
}

Tensor& weight_of(BlockWeights& block, Projection projection) {
  return block.*row_of(projection).weight;
}

const Tensor& weight_of(const BlockWeights& block, Projection projection) {
  return block.*row_of(projection).weight;
}

const Tensor& bias_of(const BlockWeights& block, Projection projection) {
  return block.*row_of(projection).bias;
}

std::vector<LoraSpec> lora_specs(const ModelConfig& config, Lora& lora) {
  lora.blocks.resize(static_cast<size_t>(config.layers));
  std::vector<LoraSpec> specs;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (size_t i = 0; i < kProjections; ++i) {
      const auto projection = static_cast<Projection>(i);
      const Sides sides = sides_of(config, projection);
      specs.push_back({fmt::format("model.layers.{}.{}.{}", layer, kRows[i].module, kRows[i].name), layer,
                       projection, sides.in, sides.out, sides.rotated_heads,
                       &lora.blocks[static_cast<size_t>(layer)][i]});
    }
  }
  return specs;
}

std::vector<LoraSpec> lora_specs(const Model& model) {
  if (!model.lora.any()) return {};
  std::vector<LoraSpec> specs =
      lora_specs(model.config, const_cast<Lora&>(model.lora));  // it has that size already
  std::erase_if(specs, [](const LoraSpec& spec) { return !spec.factors->a; });
  return specs;
}

void check_lora_targets(std::span<const std::string> targets, const std::string& where) {
  for (const std::string& target : targets) {
    const auto is = [&](const ProjectionRow& row) { return row.name == target; };
    if (std::none_of(kRows.begin(), kRows.end(), is))
      fail(
          "{}: a target must be one of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, got "
          "'{}'",
          where, printable(target));
  }
}

Lora initial_lora(const ModelConfig& config, int64_t rank, float alpha, std::span<const std::string> targets,
                  uint64_t seed) {
  check_lora_targets(targets, "lora");
  Lora lora;
  lora.rank = rank;
  lora.alpha = alpha;
  uint32_t index = 0;
  for (const LoraSpec& spec : lora_specs(config, lora)) {
    ++index;
    const std::string_view name = name_of(spec.projection);
    if (!targets.empty() && std::find(targets.begin(), targets.end(), name) == targets.end()) continue;
    const float std = 1.0f / std::sqrt(static_cast<float>(spec.in));
    spec.factors->a = normal_matrix({rank, spec.in}, std, seed, index);
    spec.factors->b = Tensor::owned(Device::kCpu, DType::kF32, {spec.out, rank});
  }
  return lora;
}

void project_group(Context& ctx, const ProjectionCall& call, const Tensor& x,
                   std::span<const Projection> which, std::span<Tensor> outputs, DType type) {
  const BlockWeights& block = call.model.weights.blocks[static_cast<size_t>(call.layer)];
  std::array<Tensor, kMostTogether> weights, biases, low;
  for (size_t i = 0; i < which.size(); ++i) {
    weights[i] = weight_of(block, which[i]);
    biases[i] = bias_of(block, which[i]);
  }
  linear_group(ctx, x, std::span(weights).first(which.size()), std::span(biases).first(which.size()), outputs,
               type);
  const Lora& lora = call.model.lora;
  if (!lora.beside()) return;
  const PolicyWork adapting(ctx.counters());  // an adapter's overhead, as routers are: no block's own work
  low_rank(ctx, call, x, which, low);
  for (size_t i = 0; i < which.size(); ++i) {
    if (!low[i]) continue;
    const Tensor scaled = lora.scale() == 1.0f ? low[i] : affine(ctx, low[i], lora.scale(), 0.0f);
    const Tensor& b = lora.blocks[static_cast<size_t>(call.layer)][static_cast<size_t>(which[i])].b;
    outputs[i] = add(ctx, outputs[i], linear(ctx, scaled, b));
  }
}

Tensor project_one(Context& ctx, const ProjectionCall& call, const Tensor& x, Projection which, DType type) {
  Tensor out;
  project_group(ctx, call, x, {&which, 1}, {&out, 1}, type);
  return out;
}

}  // namespace fathom
