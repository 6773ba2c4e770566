#include "ops/kernels/copy_rows.cuh"
#include "ops/rows/merge_rows.h"

namespace fathom {
namespace {

struct Merged {
  DeviceRows kept;
  const float *below, *fresh;
  int64_t width;
  __device__ const float* operator()(int64_t row) const {
    const int64_t at = find_kept(kept, row);
    return at >= 0 ? fresh + at * width : below + row * width;
  }
};

struct OtherRowsOf {
  DeviceRows kept;
  const float* from;
  int64_t width;
  __device__ const float* operator()(int64_t row) const {
    return find_kept(kept, row) >= 0 ? nullptr : from + row * width;
  }
};

int64_t width_of(const Tensor& x) {
  return x.dim(0) > 0 ? x.numel() / x.dim(0) : 0;
}

}  // namespace

void merge_rows_kernel(CudaBackend dev, const Tensor& below, const RowSet& kept, const Tensor& fresh,
                       Tensor& out) {
  copy_rows(dev, "merge_rows", out,
            Merged{DeviceRows(kept), below.data<float>(), fresh.data<float>(), width_of(below)});
}

void merge_rows_dbelow_kernel(CudaBackend dev, const RowSet& kept, const Tensor& d, Tensor& d_below) {
  copy_rows(dev, "the gradient of merge_rows", d_below,
            OtherRowsOf{DeviceRows(kept), d.data<float>(), width_of(d)});
}

void merge_rows_dfresh_kernel(CudaBackend dev, const RowSet& kept, const Tensor& d, Tensor& d_fresh) {
  copy_rows(dev, "the gradient of merge_rows", d_fresh,
            KeptRowsOf{DeviceRows(kept), d.data<float>(), width_of(d)});
}

}  // namespace fathom
