// How long a GPU waits for a host that waits for a count of rows.
#include <chrono>

#include "ops/kernels/gpu_test.h"
#include "ops/kernels/kept_rows_test.h"
#include "ops/linear/linear.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/select_rows.h"
#include "tensor/cuda.h"
#include "tensor/cuda_idle.h"

namespace fathom {
namespace {

class CudaIdle : public Cuda {
 protected:
  using Clock = std::chrono::steady_clock;
  static constexpr int64_t kRows = 1024;

  void SetUp() override {
    Cuda::SetUp();
    if (IsSkipped()) return;
    x_ = floats(*gpu_, normals(kRows * kRows), {kRows, kRows});
    score_ = floats(*gpu_, normals(kRows), {kRows});
    zero_ = floats(*gpu_, {0.0f}, {1});
  }

  void measure() {
    if constexpr (kHasCuda) cuda_measure_idle(gpu_->cuda().handle);
  }
  double idle_seconds() {
    if constexpr (kHasCuda) return cuda_idle_seconds(gpu_->cuda().handle);
    return -1;
  }
  int64_t wait_for_count(const Tensor& rows) {
    if constexpr (kHasCuda) return bound(gpu_->cuda(), rows);
    return -1;
  }
  Tensor some_rows() { return gather_rows(*gpu_, x_, select_rows(*gpu_, score_, Compare::kAbove, zero_)); }

  Tensor x_, score_, zero_;
};

TEST_F(CudaIdle, BeginsWhenTheWorkBeforeACountIsDone) {
  linear(*gpu_, x_, x_);  // what is made at the first product is there
  host_values(*gpu_, score_);
  measure();
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < 20; ++i) {  // in a single round the host may go on before the device is idle
    for (int product = 0; product < 20; ++product) linear(*gpu_, x_, x_);  // queued sooner than done
    const int64_t rows = wait_for_count(some_rows());
    EXPECT_GT(rows, 0);
    EXPECT_LT(rows, kRows);
  }
  const double waited = std::chrono::duration<double>(Clock::now() - start).count();
  const double idle = idle_seconds();
  EXPECT_GT(idle, 0);
  EXPECT_LT(idle, waited / 2);
}

TEST_F(CudaIdle, IsNothingWhereTheCountIsThereOrNobodyMeasures) {
  const Tensor rows = some_rows();
  host_values(*gpu_, score_);
  measure();
  EXPECT_GT(wait_for_count(rows), 0);
  EXPECT_EQ(idle_seconds(), 0);
  for (int i = 0; i < 20; ++i) linear(*gpu_, x_, x_);
  EXPECT_GT(wait_for_count(some_rows()), 0);
  EXPECT_EQ(idle_seconds(), 0);
}

}  // namespace
}  // namespace fathom
