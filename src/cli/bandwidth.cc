#include "cli/bandwidth.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>

#include "ops/optimizer/gradient_norm.h"
#include "ops/rows/read_scalars.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

constexpr int64_t kBytes = int64_t{512} << 20;
constexpr int64_t kStreams = 4;
constexpr int kPasses = 5;

using Vector = uint64_t __attribute__((vector_size(16)));

Vector load(const std::byte* from) {
  Vector v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

// bytes: a multiple of 64 for each stream.
uint64_t read_all(const std::byte* data, int64_t bytes) {
  const int64_t stream = bytes / kStreams / 64 * 64;
  Vector sums[kStreams * 2] = {};
  for (int64_t i = 0; i < stream; i += 64) {
    for (int64_t s = 0; s < kStreams; ++s) {
      const std::byte* at = data + s * stream + i;
      sums[2 * s] += load(at) + load(at + 16);
      sums[2 * s + 1] += load(at + 32) + load(at + 48);
    }
  }
  uint64_t sum = 0;
  for (const Vector& v : sums) sum += v[0] + v[1];
  return sum;
}

double of_cpu(ThreadPool& pool) {
  const std::unique_ptr<std::byte[]> buffer(new std::byte[kBytes]);
  const int threads = pool.threads();
  const auto part = [&](int thread) { return split_evenly(kBytes, thread, threads, 4096); };
  pool.run([&](int thread) {
    const Range range = part(thread);
    std::memset(buffer.get() + range.begin, thread + 1, static_cast<size_t>(range.end - range.begin));
  });
  std::atomic<uint64_t> kept{0};  // so that the reads are not dead code
  double best = 1e30;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    pool.run([&](int thread) {
      const Range range = part(thread);
      kept += read_all(buffer.get() + range.begin, range.end - range.begin);
    });
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return static_cast<double>(kBytes) / (kept.load() == 1 ? best * 2 : best);
}

// By an op that reads every element once and keeps one number.
double of_device(Context& ctx) {
  const ArenaScope scope(ctx);
  const Tensor buffer = Tensor::owned(ctx.device(), DType::kF32, {kBytes / 4});
  double best = 1e30;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    const Tensor sum = gradient_norm(ctx, buffer);
    read_scalars(ctx, std::array{sum.rows(0, 1)});
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return static_cast<double>(kBytes) / best;
}

}  // namespace

double read_bandwidth(Context& ctx) {
  return ctx.device() == Device::kCpu ? of_cpu(ctx.pool()) : of_device(ctx);
}

}  // namespace fathom
