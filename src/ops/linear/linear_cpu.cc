#include <algorithm>
#include <array>

#include "base/format.h"
#include "ops/kernels/row_set_cpu.h"
#include "ops/linear/linear_kernel.h"
#include "quant/matmul.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

// Output columns per thread start at multiples of this: no two threads write one cache line of an output row,
// and the kernels' tiles are whole.
constexpr int64_t kColumnGrain = 32;
static_assert(kColumnGrain % 4 == 0);  // fours stay whole

// Fewer multiply-adds than this wake nobody: a router's one output is done before another thread has begun.
constexpr int64_t kLinearWorthThreads = 16384;

size_t padded(size_t bytes) {
  return (bytes + 127) / 128 * 128;
}

struct Job {
  const LinearCall& call;
  const MatmulKernels& kernels;
  RowsView x;
  Prepared form;
  bool shared;  // one preparation for all threads; otherwise each makes its own (no barrier)
  std::byte* prepared;
  size_t prepared_step;
  std::byte* scratch;
  size_t scratch_step;
};

void add_bias(const Tensor& bias, const Range& columns, int64_t rows, int64_t stride, float* out) {
  const float* b = bias.data<float>();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = columns.begin; c < columns.end; ++c) out[r * stride + c] += b[c];
  }
}

void run_thread(const Job& job, ThreadPool& pool, int thread, int threads) {
  std::byte* prepared = job.prepared + (job.shared ? 0 : job.prepared_step * static_cast<size_t>(thread));
  const int64_t pieces = prepared_pieces(job.form, job.x.count);
  const Range mine = job.shared ? split_evenly(pieces, thread, threads) : Range{0, pieces};
  prepare(job.kernels, job.form, job.x, mine.begin, mine.end, prepared);
  if (job.shared) pool.barrier();
  for (size_t i = 0; i < job.call.weights.size(); ++i) {
    const Tensor& w = job.call.weights[i];
    Tensor& out = job.call.outputs[i];
    const int64_t columns = w.dim(0), stride = row_bytes(w.dtype(), w.dim(1));
    const Range range = split_evenly(columns, thread, threads, kColumnGrain);
    const Weights weights{.data = static_cast<const uint8_t*>(w.raw()) + range.begin * stride,
                          .stride = stride,
                          .columns = range.end - range.begin,
                          .fours = w.layout() == Layout::kFours};
    multiply(job.kernels, w.dtype(), job.x, prepared, weights, out.data<float>() + range.begin, columns,
             job.scratch + job.scratch_step * static_cast<size_t>(thread));
    if (!job.call.biases.empty() && job.call.biases[i]) {
      add_bias(job.call.biases[i], range, job.x.count, columns, out.data<float>());
    }
  }
}

void run_group(CpuBackend cpu, Context& ctx, const LinearCall& call) {
  const MatmulKernels& kernels = matmul_kernels(cpu.isa);
  const RowsView x{call.x.data<float>(), call.x.stride(0), present_rows(call.x), call.x.dim(1)};
  // All weights that need a preparation need the same one: see linear_kernel().
  Prepared form = Prepared::kNothing;
  size_t scratch = 0;
  int64_t madds = 0;
  for (const Tensor& w : call.weights) {
    const Prepared wanted = prepared_form(kernels, w.dtype(), x.count);
    if (wanted != Prepared::kNothing) form = wanted;
    scratch = std::max(scratch, multiply_scratch_bytes(kernels, w.dtype(), x.count, x.k));
    madds += x.count * w.dim(0) * x.k;
    cpu.counters.add({.madds = static_cast<uint64_t>(x.count * w.dim(0) * x.k),
                      .weight_bytes = static_cast<uint64_t>(x.count > 0 ? w.nbytes() : 0)});
  }
  if (x.count == 0) return;
  const int team = madds < kLinearWorthThreads ? 1 : cpu.pool.threads();
  const auto threads = static_cast<size_t>(team);
  const ArenaScope scope(ctx);
  const bool shared = team > 1 && prepared_pieces(form, x.count) > 1;
  const size_t step = padded(prepared_bytes(form, x.count, x.k)), scratch_step = padded(scratch);
  const Job job{call,        kernels,
                x,           form,
                shared,      static_cast<std::byte*>(ctx.arena().allocate(step * (shared ? 1 : threads))),
                step,        static_cast<std::byte*>(ctx.arena().allocate(scratch_step * threads)),
                scratch_step};
  if (team == 1) return run_thread(job, cpu.pool, 0, 1);
  cpu.pool.run([&](int thread) { run_thread(job, cpu.pool, thread, team); });
}

}  // namespace

void linear_kernel(CpuBackend cpu, Context& ctx, const LinearCall& call) {
  const MatmulKernels& kernels = matmul_kernels(cpu.isa);
  Prepared form = Prepared::kNothing;
  bool one_form = true;
  for (const Tensor& w : call.weights) {
    if (w.layout() == Layout::kFours && !takes_fours(kernels, w.dtype()))
      fail("linear: weight is {} in fours, which {} has no products for", name_of(w.dtype()),
           name_of(cpu.isa));
    const Prepared wanted = prepared_form(kernels, w.dtype(), present_rows(call.x));
    if (wanted == Prepared::kNothing) continue;
    one_form = one_form && (form == Prepared::kNothing || form == wanted);
    form = wanted;
  }
  if (one_form) return run_group(cpu, ctx, call);
  for (size_t i = 0; i < call.weights.size(); ++i) {
    run_group(cpu, ctx,
              {call.x, call.weights.subspan(i, 1),
               call.biases.empty() ? call.biases : call.biases.subspan(i, 1), call.outputs.subspan(i, 1)});
  }
}

}  // namespace fathom
