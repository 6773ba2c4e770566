#include "skip/fingerprint.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/format.h"
#include "base/sha256.h"
#include "model/lora.h"
#include "model/weights.h"
#include "ops/linear/matrix_rows.h"
#include "quant/half.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

std::string shape_text(const ModelConfig& c) {
  return fmt::format("width {}, layers {}, heads {}, kv_heads {}, head_dim {}, ffn_width {}, vocab {}",
                     c.width, c.layers, c.heads, c.kv_heads, c.head_dim, c.ffn_width, c.vocab);
}

// The tokens by their bytes. Ids without a token of their own are left out: GGUF files fill them up with
// names.
std::string tokenizer_hash(const Tokenizer* tokenizer) {
  if (!tokenizer) return "";
  Sha256 hash;
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    const std::string piece = tokenizer->piece(id, true);
    if (piece.empty() || piece == fmt::format("[PAD{}]", id) || piece == fmt::format("[EMPTY_{}]", id))
      continue;
    hash.add(fmt::format("{} {}\n", id, piece.size()));
    hash.add(piece);
  }
  return hash.hex();
}

// As they multiply, whether the file holds them less one or not.
std::string norms_hash(Context& ctx, const Model& model) {
  Sha256 hash;
  std::vector<float> values;
  std::vector<uint16_t> halves;
  for (const WeightSpec& spec : weight_specs(model)) {
    if (!spec.norm) continue;
    values.resize(static_cast<size_t>(spec.tensor->numel()));
    copy_to_host(ctx, *spec.tensor, values);
    halves.clear();
    for (const float value : values) halves.push_back(bf16_of_f32(value + model.config.norm_weight_offset));
    hash.add(std::as_bytes(std::span(halves)));
  }
  return hash.hex();
}

uint64_t mixed(uint64_t x) {  // splitmix64's
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

// Rows that have the same place in every file: of queries and keys, the first of a head.
std::vector<int64_t> sampled_rows(const LoraSpec& spec) {
  constexpr int64_t kRows = 4;
  const int64_t pieces = spec.rotated_heads > 0 ? spec.rotated_heads : spec.out, each = spec.out / pieces;
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < std::min(kRows, pieces); ++i)
    rows.push_back(i * pieces / std::min(kRows, pieces) * each);
  return rows;
}

void decode_row_of(Context& ctx, const Tensor& matrix, int64_t row, std::vector<float>& out) {
  out.resize(static_cast<size_t>(matrix.dim(1)));
  if (matrix.device() == Device::kCpu) return decode_matrix_row(matrix, row, out.data());
  decode_matrix_row(matrix.rows(row, 1).to(ctx, Device::kCpu), 0, out.data());
}

// Bit i of an element's hash is its sign in projection i.
std::vector<float> projections_of(Context& ctx, const Model& model) {
  std::array<double, kProjectionCount> sums{};
  std::vector<float> values;
  uint64_t element = 0;
  Lora none;
  for (const LoraSpec& spec : lora_specs(model.config, none)) {
    const Tensor& matrix = weight_of(model.weights.blocks[static_cast<size_t>(spec.layer)], spec.projection);
    for (const int64_t row : sampled_rows(spec)) {
      decode_row_of(ctx, matrix, row, values);
      for (const float value : values) {
        const uint64_t signs = mixed(element++);
        for (size_t i = 0; i < sums.size(); ++i) sums[i] += signs >> i & 1 ? double{value} : -double{value};
      }
    }
  }
  return {sums.begin(), sums.end()};
}

// Enough to tell any two trainings apart; a hash of gigabytes would make every start slow.
constexpr int64_t kBytesOfTensor = 1 << 16;

// Rows with at least `bytes` bytes (or all), on the host, one after another as in a file: the same on every
// machine.
Tensor first_rows(Context& ctx, const Tensor& tensor, int64_t bytes) {
  const int64_t each = tensor.nbytes() / tensor.dim(0),
                rows = std::min(tensor.dim(0), (bytes + each - 1) / each);
  if (tensor.layout() == Layout::kRows) return tensor.rows(0, rows).to(ctx, Device::kCpu);
  return in_rows(ctx, tensor.rows(0, std::min(tensor.dim(0), (rows + 3) / 4 * 4))).to(ctx, Device::kCpu);
}

void add(Sha256& hash, const std::string& text) {
  hash.add(fmt::format("{} ", text.size()));
  hash.add(text);
}

}  // namespace

std::string identity_of(Context& ctx, const Model& model) {
  const ArenaScope scope(ctx);
  const Fingerprint known = fingerprint(ctx, model);
  Sha256 hash;
  for (const std::string& part : {known.shape, known.tokenizer, known.norms}) add(hash, part);
  for (const WeightSpec& spec : weight_specs(model)) {
    const Tensor& tensor = *spec.tensor;
    add(hash, tensor.defined() ? name_of(tensor.dtype()) : "none");
    if (!tensor.defined()) continue;
    const int64_t bytes = std::min<int64_t>(kBytesOfTensor, tensor.nbytes());
    const Tensor first = first_rows(ctx, tensor, bytes);
    hash.add(std::span(static_cast<const std::byte*>(first.raw()), static_cast<size_t>(bytes)));
  }
  return hash.hex().substr(0, 16);
}

Fingerprint fingerprint(Context& ctx, const Model& model) {
  return {shape_text(model.config), tokenizer_hash(model.tokenizer.get()), norms_hash(ctx, model),
          projections_of(ctx, model)};
}

double projection_difference(const Fingerprint& adapter, const Fingerprint& model) {
  if (adapter.projections.size() != model.projections.size()) return 0;
  double squares = 0, all = 0;
  for (size_t i = 0; i < adapter.projections.size(); ++i) {
    const double one = double{adapter.projections[i]};
    squares += std::pow(one - double{model.projections[i]}, 2);
    all += one * one;
  }
  return all > 0 ? std::sqrt(squares / all) : 0;
}

std::string fingerprint_difference(const Fingerprint& adapter, const Fingerprint& model) {
  if (adapter.shape != model.shape)
    return fmt::format("it was made for a model of {}, this one has {}", printable(adapter.shape),
                       model.shape);
  if (!adapter.tokenizer.empty() && !model.tokenizer.empty() && adapter.tokenizer != model.tokenizer)
    return "it was made for a model with another tokenizer";
  if (adapter.norms != model.norms) return "it was made for a model with other RMSNorm weights";
  return "";
}

}  // namespace fathom
