// How a product is cut up. f32 has tiles of ours too: faster here than OpenBLAS's, and with the same bits on
// every instruction set and at any number of threads.
#include <algorithm>

#include "ops/linear/gemm.h"
#include "quant/gemm_kernels.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
int64_t round_up(int64_t n, int64_t multiple) {
  return ceil_div(n, multiple) * multiple;
}

// Without an instruction for bf16 the f32 kernels multiply rounded values.
const GemmKernels& gemm_kernels(Isa isa, Precision precision) {
#if defined(__aarch64__)
  if (isa == Isa::kI8mm && precision == Precision::kBf16) return kGemmBf16I8mm;
  if (isa != Isa::kScalar) return kGemmF32Dotprod;
#elif defined(__x86_64__)
  if (isa == Isa::kAmx && precision == Precision::kBf16) return kGemmBf16Amx;
  if (isa == Isa::kAvx512Bf16 && precision == Precision::kBf16) return kGemmBf16Avx512;
  if (isa == Isa::kAvx512 || isa == Isa::kAvx512Bf16 || isa == Isa::kAmx) return kGemmF32Avx512;
  if (isa != Isa::kScalar) return kGemmF32Avx2;
#endif
  static_cast<void>(isa);
  static_cast<void>(precision);
  return kGemmF32Scalar;
}

// Of the moving factor, packed together: they and the staying ones below fit the second-level cache.
constexpr int64_t kMovingPanels = 8, kStayingPanels = 16;

int64_t deepest_pass(const GemmKernels& kernels) {
  return 1536 / kernels.element;  // a panel of each factor fits the first-level cache
}

// Elements of k in one pass: all passes of about the same length.
int64_t pass_depth(const GemmKernels& kernels, int64_t k) {
  return round_up(ceil_div(k, ceil_div(k, deepest_pass(kernels))), kernels.step);
}

// One factor and how it is packed.
struct Side {
  GemmFactor factor;
  int64_t lines, panel;  // panel: lines of one
  int64_t element;       // bytes of a packed one
  void (*pack)(const GemmFactor&, int64_t, int64_t, void*);

  int64_t panels() const { return ceil_div(lines, panel); }
  // Where panel p is when each is `depth` long.
  std::byte* at(std::byte* packed, int64_t p, int64_t depth) const {
    return packed + p * panel * depth * element;
  }
  // Panel p, elements [begin, begin + k).
  void pack_panel(int64_t p, int64_t begin, int64_t k, std::byte* to) const {
    GemmFactor part = factor;
    const int64_t offset = p * panel * factor.line_step + begin * factor.k_step;
    part.data = factor.bf16 ? static_cast<const void*>(static_cast<const uint16_t*>(factor.data) + offset)
                            : static_cast<const float*>(factor.data) + offset;
    pack(part, std::min(panel, lines - p * panel), k, to);
  }
  // Panels [first, last), each `depth` long. Where lines lie side by side, a few elements of all panels at a
  // time: a panel is narrower than a cache line, which its neighbour needs while it is still there.
  void pack_panels(int64_t first, int64_t last, int64_t begin, int64_t k, int64_t depth,
                   std::byte* to) const {
    constexpr int64_t kShort = 32;  // a multiple of every kernel's step
    const int64_t length = factor.k_step == 1 ? k : kShort;
    for (int64_t i = 0; i < k; i += length) {
      for (int64_t p = first; p < last; ++p)
        pack_panel(p, begin + i, std::min(length, k - i), at(to, p - first, depth) + i * panel * element);
    }
  }
};

// The factor with fewer lines stays: it is packed once by all threads together. The other one moves past it:
// each thread packs a few panels of its own share and multiplies them with all that stays. So every panel is
// packed once, and a thread's share of C is its share of the moving lines.
class Product {
 public:
  Product(const GemmKernels& kernels, const GemmArgs& args)
      : kernels_(kernels), args_(args), a_stays_(args.m <= args.n), depth_(pass_depth(kernels, args.k)) {
    const Side a = side(args.a, args.layout != GemmLayout::kTN, args.m, kernels.rows, kernels.pack_a);
    const Side b = side(args.b, args.layout == GemmLayout::kNT, args.n, kernels.columns, kernels.pack_b);
    staying_ = a_stays_ ? a : b;
    moving_ = a_stays_ ? b : a;
  }
  int64_t stayed_bytes() const {
    return round_up(staying_.panels() * staying_.panel * depth_ * kernels_.element, 64);
  }
  int64_t moved_bytes() const {
    return round_up(kMovingPanels * moving_.panel * depth_ * kernels_.element, 64);
  }

  // A thread's part. stayed: shared; moved: the thread's own. wait(): until all threads have come here.
  template <class Wait>
  void run(int thread, int threads, std::byte* stayed, std::byte* moved, Wait&& wait) const {
    const Range packs = split_evenly(staying_.panels(), thread, threads);
    const Range mine = split_evenly(moving_.panels(), thread, threads);
    for (int64_t begin = 0; begin < args_.k; begin += depth_) {
      const int64_t k = std::min(depth_, args_.k - begin), padded = round_up(k, kernels_.step);
      if (begin > 0) wait();  // the others are done with what stayed
      for (int64_t p = packs.begin; p < packs.end; p += kMovingPanels) {
        const int64_t last = std::min(packs.end, p + kMovingPanels);
        staying_.pack_panels(p, last, begin, k, padded, staying_.at(stayed, p, padded));
      }
      wait();
      for (int64_t p = mine.begin; p < mine.end; p += kMovingPanels) {
        const int64_t last = std::min(mine.end, p + kMovingPanels);
        moving_.pack_panels(p, last, begin, k, padded, moved);
        multiply_block(p, last, stayed, moved, padded, begin == 0 ? args_.beta : 1.0f);
      }
    }
  }

 private:
  Side side(const GemmMatrix& matrix, bool lines_are_rows, int64_t lines, int64_t panel,
            void (*pack)(const GemmFactor&, int64_t, int64_t, void*)) const {
    const GemmFactor factor{matrix.data, matrix.bf16, args_.precision == Precision::kBf16,
                            lines_are_rows ? matrix.stride : 1, lines_are_rows ? 1 : matrix.stride};
    return {factor, lines, panel, kernels_.element, pack};
  }

  // Moving panels [first, last), packed in `moved`, with all that stays.
  void multiply_block(int64_t first, int64_t last, std::byte* stayed, std::byte* moved, int64_t k,
                      float beta) const {
    for (int64_t s = 0; s < staying_.panels(); s += kStayingPanels) {
      const int64_t end = std::min(staying_.panels(), s + kStayingPanels);
      for (int64_t p = first; p < last; ++p) {
        for (int64_t i = s; i < end; ++i)
          multiply_panels(i, p, staying_.at(stayed, i, k), moving_.at(moved, p - first, k), k, beta);
      }
    }
  }

  void multiply_panels(int64_t stay, int64_t move, const void* stayed, const void* moved, int64_t k,
                       float beta) const {
    const int64_t row = (a_stays_ ? stay : move) * kernels_.rows;
    const int64_t column = (a_stays_ ? move : stay) * kernels_.columns;
    const GemmTile tile{
        args_.c + row * args_.c_stride + column,      args_.c_stride, std::min(kernels_.rows, args_.m - row),
        std::min(kernels_.columns, args_.n - column), args_.alpha,    beta};
    kernels_.multiply(a_stays_ ? stayed : moved, a_stays_ ? moved : stayed, k, tile);
  }

  const GemmKernels& kernels_;
  const GemmArgs& args_;
  bool a_stays_;
  int64_t depth_;
  Side staying_{}, moving_{};
};

// C = beta · C, where there is nothing to sum. Nothing at all where beta is 1: the gradient of a weight that
// no row reached is not even read.
bool finished_without_sums(const GemmArgs& args) {
  for (int64_t r = 0; args.k <= 0 && args.beta != 1.0f && r < args.m; ++r) {
    float* row = args.c + r * args.c_stride;
    for (int64_t i = 0; i < args.n; ++i) row[i] = args.beta == 0.0f ? 0.0f : args.beta * row[i];
  }
  return args.m <= 0 || args.n <= 0 || args.k <= 0;
}

}  // namespace

void gemm(CpuBackend dev, Context& ctx, const GemmArgs& args) {
  if (finished_without_sums(args)) return;
  dev.counters.add({.madds = static_cast<uint64_t>(args.m * args.n * args.k)});
  const ArenaScope scope(ctx);
  const Product product(gemm_kernels(dev.isa, args.precision), args);
  const auto room = [&](int64_t bytes) {
    return static_cast<std::byte*>(ctx.arena().allocate(static_cast<size_t>(bytes)));
  };
  // Some microseconds of work wake nobody.
  constexpr int64_t kWorthThreads = 100'000;
  const int threads = args.m * args.n * args.k < kWorthThreads ? 1 : dev.pool.threads();
  std::byte* stayed = room(product.stayed_bytes());
  std::byte* moved = room(product.moved_bytes() * threads);
  if (threads == 1) return product.run(0, 1, stayed, moved, [] {});
  dev.pool.run([&](int thread) {
    product.run(thread, threads, stayed, moved + product.moved_bytes() * thread, [&] { dev.pool.barrier(); });
  });
}

void gemm_in_thread(Isa isa, const GemmArgs& args, void* scratch) {
  if (finished_without_sums(args)) return;
  const Product product(gemm_kernels(isa, args.precision), args);
  auto* memory = static_cast<std::byte*>(scratch);
  product.run(0, 1, memory, memory + product.stayed_bytes(), [] {});
}

int64_t gemm_scratch_bytes(Isa isa, Precision precision, int64_t m, int64_t n, int64_t k) {
  const GemmKernels& kernels = gemm_kernels(isa, precision);
  const int64_t panel = std::max(kernels.rows, kernels.columns),
                depth = std::min(round_up(k, kernels.step), round_up(deepest_pass(kernels), kernels.step));
  return round_up((std::min(m, n) + (1 + kMovingPanels) * panel) * depth * kernels.element, 64) + 128;
}

}  // namespace fathom
