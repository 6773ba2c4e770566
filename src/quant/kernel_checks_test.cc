#include "quant/kernel_checks.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/format.h"
#include "base/rng.h"
#include "quant/formats.h"
#include "quant/fours.h"
#include "quant/matmul.h"

namespace fathom {
namespace {

constexpr DType kWeightTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0, DType::kQ4_1,
                                  DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kQ2_K, DType::kQ3_K,
                                  DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

// f16 with a magnitude in [2^-11, 2^-8), either sign: a block's scale.
uint16_t random_scale(Rng& rng) {
  return static_cast<uint16_t>((rng.below(2) << 15) | ((4 + rng.below(3)) << 10) | rng.below(1024));
}

// Where the f16 numbers of a block are; every other byte may have any value.
std::vector<int> scale_offsets(DType dtype) {
  switch (dtype) {
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {0, 2};
    case DType::kQ2_K:
      return {80, 82};
    case DType::kQ3_K:
      return {108};
    case DType::kQ6_K:
      return {208};
    default:
      return {0};
  }
}

// (columns, k) weights whose every bit pattern can occur. The rows are at an odd multiple of two bytes, as in
// a file.
struct Matrix {
  std::vector<uint8_t> bytes;
  Weights view{};
  std::vector<float> values;  // decoded
};

Matrix random_matrix(DType dtype, int64_t columns, int64_t k, uint64_t seed) {
  Rng rng(seed, {static_cast<uint32_t>(dtype), static_cast<uint32_t>(columns), static_cast<uint32_t>(k)});
  const int64_t stride = row_bytes(dtype, k);
  Matrix m;
  m.bytes.resize(static_cast<size_t>(columns * stride + 2));
  uint8_t* data = m.bytes.data() + 2;
  if (!is_block_format(dtype)) {
    std::vector<float> row(static_cast<size_t>(k));
    for (int64_t c = 0; c < columns; ++c) {
      for (float& value : row) value = rng.normal() * 0.1f;
      encode_row(dtype, row.data(), data + c * stride, k);
    }
  } else {
    for (int64_t i = 0; i < columns * stride; ++i) data[i] = static_cast<uint8_t>(rng.next_u32());
    for (int64_t block = 0; block < columns * stride / traits(dtype).block_bytes; ++block) {
      for (int offset : scale_offsets(dtype)) {
        const uint16_t scale = random_scale(rng);
        std::memcpy(data + block * traits(dtype).block_bytes + offset, &scale, 2);
      }
    }
  }
  m.view = {data, stride, columns};
  m.values.resize(static_cast<size_t>(columns * k));
  for (int64_t c = 0; c < columns; ++c) decode_row(dtype, data + c * stride, m.values.data() + c * k, k);
  return m;
}

// A copy of weights that ends where a page does, and behind it nothing may be read.
class AtEdge {
 public:
  explicit AtEdge(const Weights& from) {
    const auto size = static_cast<size_t>(from.columns * from.stride),
               page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), before = (size + page - 1) / page * page;
    bytes_ = before + page;
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) fail("kernel checks: no memory for {} bytes", bytes_);
    uint8_t* end = static_cast<uint8_t*>(memory_) + before;
    if (mprotect(end, page, PROT_NONE) != 0) fail("kernel checks: cannot protect a page");
    std::memcpy(end - size, from.data, size);
    view = from;
    view.data = end - size;
  }
  ~AtEdge() { munmap(memory_, bytes_); }
  AtEdge(const AtEdge&) = delete;
  AtEdge& operator=(const AtEdge&) = delete;

  Weights view{};

 private:
  size_t bytes_;
  void* memory_;
};

std::vector<uint8_t> in_fours(DType dtype, const Weights& weights, int64_t k) {
  std::vector<uint8_t> out(static_cast<size_t>(weights.columns * weights.stride));
  for (int64_t c = 0; c < weights.columns; c += 4)
    rows_to_fours(dtype, weights.data + c * weights.stride, k, out.data() + c * weights.stride);
  return out;
}

std::vector<float> random_rows(int64_t rows, int64_t k, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> x(static_cast<size_t>(rows * k));
  for (size_t i = 0; i < x.size(); ++i) x[i] = rng.normal() * (i % 97 == 0 ? 20.0f : 1.0f);
  return x;
}

std::vector<float> product(const MatmulKernels& kernels, DType dtype, const RowsView& x,
                           const Weights& weights) {
  const Prepared form = prepared_form(kernels, dtype, x.count);
  std::vector<uint64_t> prepared(prepared_bytes(form, x.count, x.k) / 8 + 8);
  std::vector<uint64_t> scratch(multiply_scratch_bytes(kernels, dtype, x.count, x.k) / 8 + 8);
  std::vector<float> out(static_cast<size_t>(x.count * weights.columns + 1), 12345.0f);
  prepare(kernels, form, x, 0, prepared_pieces(form, x.count), prepared.data());
  multiply(kernels, dtype, x, prepared.data(), weights, out.data(), weights.columns, scratch.data());
  return out;
}

std::string first_difference(const std::vector<float>& want, const std::vector<float>& got, int64_t columns) {
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::memcmp(&want[i], &got[i], 4) == 0 || (std::isnan(want[i]) && std::isnan(got[i]))) continue;
    const auto at = static_cast<int64_t>(i);
    return "row " + std::to_string(at / columns) + " column " + std::to_string(at % columns) + ": expected " +
           std::to_string(want[i]) + ", got " + std::to_string(got[i]);
  }
  return "";
}

// How far |x| may be moved by what a product does to its activations: half a step of the block's int8 scale,
// or half a step of bf16.
double activation_error(DType dtype, bool bf16, const float* x, int64_t i) {
  if (dtype == DType::kBF16 && bf16) return std::fabs(x[i]) / 256.0;
  if (!is_block_format(dtype) || !has_dot_kernel(dtype)) return 0.0;
  double largest = 0.0;
  for (int64_t j = i / 32 * 32; j < i / 32 * 32 + 32; ++j) largest = std::fmax(largest, std::fabs(x[j]));
  return largest / 253.9;
}

std::string far_from_doubles(DType dtype, bool bf16, const RowsView& x, const Matrix& m,
                             const std::vector<float>& got) {
  for (int64_t r = 0; r < x.count; r += 5) {
    const float* row = x.data + r * x.stride;
    std::vector<double> error(static_cast<size_t>(x.k));
    for (int64_t i = 0; i < x.k; ++i) error[static_cast<size_t>(i)] = activation_error(dtype, bf16, row, i);
    for (int64_t c = 0; c < m.view.columns; ++c) {
      double sum = 0.0, limit = 1e-30;
      for (int64_t i = 0; i < x.k; ++i) {
        const double w = m.values[static_cast<size_t>(c * x.k + i)];
        sum += w * row[i];
        limit += std::fabs(w) * (error[static_cast<size_t>(i)] + 3e-6 * std::fabs(row[i]));
      }
      const double value = got[static_cast<size_t>(r * m.view.columns + c)];
      if (std::fabs(value - sum) <= limit) continue;
      return "row " + std::to_string(r) + " column " + std::to_string(c) + ": expected " +
             std::to_string(sum) + " ± " + std::to_string(limit) + ", got " + std::to_string(value);
    }
  }
  return "";
}

// One shape: doubles, weights at the edge of what may be read, the scalar kernels, each row alone, and the
// float after the result (untouched).
std::string check_shape(const MatmulKernels& kernels, DType dtype, int64_t rows, int64_t columns, int64_t k) {
  const Matrix m = random_matrix(dtype, columns, k, 7);
  const int64_t stride = k + 3;
  const std::vector<float> data = random_rows(rows, stride, 11);
  const RowsView x{data.data(), stride, rows, k};
  const std::vector<float> got = product(kernels, dtype, x, m.view);
  if (got.back() != 12345.0f) return "wrote past the end";
  if (std::string text = far_from_doubles(dtype, kernels.bf16 != nullptr, x, m, got); !text.empty())
    return "against doubles: " + text;
  if (is_block_format(dtype)) {
    const AtEdge edge(m.view);
    if (std::string text = first_difference(got, product(kernels, dtype, x, edge.view), columns);
        !text.empty())
      return "elsewhere in memory: " + text;
  }
  if (takes_fours(kernels, dtype) && columns % 4 == 0) {
    const std::vector<uint8_t> bytes = in_fours(dtype, m.view, k);
    Weights fours = m.view;
    fours.data = bytes.data();
    fours.fours = true;
    const AtEdge edge(fours);
    if (std::string text = first_difference(got, product(kernels, dtype, x, edge.view), columns);
        !text.empty())
      return "in fours: " + text;
  }
  const bool same_order = !(dtype == DType::kBF16 && kernels.bf16);
  if (same_order) {
    const std::vector<float> want = product(matmul_kernels(Isa::kScalar), dtype, x, m.view);
    if (std::string text = first_difference(want, got, columns); !text.empty())
      return "against scalar: " + text;
  }
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<float> alone = product(kernels, dtype, {x.data + r * stride, stride, 1, k}, m.view);
    alone.pop_back();
    const std::vector<float> together(got.begin() + r * columns, got.begin() + (r + 1) * columns);
    if (std::string text = first_difference(alone, together, columns); !text.empty()) {
      return "row " + std::to_string(r) + " alone: " + text;
    }
  }
  return "";
}

std::string check_format(const MatmulKernels& kernels, DType dtype) {
  const int64_t block = traits(dtype).block;
  std::vector<int64_t> ks = {32, 96, 576};
  if (block == 256) ks = {256, 768};
  if (block == 1) ks = {1, 7, 20, 576, 700};
  for (int64_t k : ks) {
    for (int64_t rows : {1, 2, 3, 4, 5, 8, 11, 12, 16, 17, 64}) {
      for (int64_t columns : {1, 4, 7, 71, 76}) {
        if (std::string text = check_shape(kernels, dtype, rows, columns, k); !text.empty()) {
          return std::to_string(rows) + " rows, " + std::to_string(columns) +
                 " columns, k = " + std::to_string(k) + ": " + text;
        }
      }
    }
  }
  if (block == 1) return "";
  const int64_t longest = 8192 + 3 * block;  // in more than one piece, where a kernel takes rows in pieces
  for (int64_t columns : {9, 132}) {         // 132: of eleven rows, in more than one strip
    const std::string text = check_shape(kernels, dtype, columns == 9 ? 2 : 11, columns, longest);
    if (!text.empty()) return "k = " + std::to_string(longest) + ": " + text;
  }
  return "";
}

// Values that are not finite spoil their own row and no other; tiny and huge ones stay finite.
std::string check_extremes(const MatmulKernels& kernels, DType dtype) {
  const int64_t k = 256, rows = 6, columns = 9;
  const Matrix m = random_matrix(dtype, columns, k, 3);
  std::vector<float> data = random_rows(rows, k, 5);
  const float infinity = std::numeric_limits<float>::infinity();
  data[1 * k + 40] = std::numeric_limits<float>::quiet_NaN();
  data[2 * k + 3] = infinity;
  for (int64_t i = 0; i < k; ++i) {
    data[static_cast<size_t>(3 * k + i)] = 0.0f;
    data[static_cast<size_t>(4 * k + i)] = std::numeric_limits<float>::denorm_min();
    data[static_cast<size_t>(5 * k + i)] *= 1e30f;
  }
  const std::vector<float> out = product(kernels, dtype, {data.data(), k, rows, k}, m.view);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const float value = out[static_cast<size_t>(r * columns + c)];
      const bool right = r == 1 ? std::isnan(value) : r == 2 ? !std::isfinite(value) : std::isfinite(value);
      if (!right || (r == 3 && value != 0.0f))
        return "row " + std::to_string(r) + ": got " + std::to_string(value);
    }
  }
  return "";
}

// The largest weights that a format stores, with the largest activations, all of one sign: sums of products
// that are kept in few bits overflow here first.
std::string check_largest(const MatmulKernels& kernels, DType dtype) {
  if (!is_block_format(dtype)) return "";
  const int64_t k = 512, columns = 9;
  Matrix m = random_matrix(dtype, columns, k, 7);
  const int64_t bytes = traits(dtype).block_bytes;
  const std::vector<int> scales = scale_offsets(dtype);
  for (int64_t i = 0; i < columns * m.view.stride; ++i) {
    const int64_t at = i % bytes;
    if (std::any_of(scales.begin(), scales.end(), [&](int scale) { return at == scale || at == scale + 1; }))
      continue;
    const bool odd = i / m.view.stride % 2 == 1;
    m.bytes[static_cast<size_t>(2 + i)] = dtype != DType::kQ8_0 ? 0xff : odd ? 0x7f : 0x80;
  }
  for (const int64_t rows : {1, 2, 4, 6, 8, 64}) {
    std::vector<float> data;
    for (int64_t i = 0; i < rows * k; ++i) data.push_back(i / k % 2 == 0 ? 1.0f : -1.0f);
    const RowsView x{data.data(), k, rows, k};
    if (std::string text = first_difference(product(matmul_kernels(Isa::kScalar), dtype, x, m.view),
                                            product(kernels, dtype, x, m.view), columns);
        !text.empty())
      return std::to_string(rows) + " rows against scalar: " + text;
  }
  return "";
}

}  // namespace

std::vector<KernelCheck> run_kernel_checks() {
  std::vector<KernelCheck> checks;
  for (Isa isa : supported_isas()) {
    const MatmulKernels& kernels = matmul_kernels(isa);
    for (DType dtype : kWeightTypes) {
      const std::string name = std::string(name_of(isa)) + " " + name_of(dtype);
      checks.push_back({name, check_format(kernels, dtype)});
      checks.push_back({name + " extremes", check_extremes(kernels, dtype)});
      checks.push_back({name + " largest", check_largest(kernels, dtype)});
    }
  }
  return checks;
}

}  // namespace fathom
