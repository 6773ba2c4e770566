// A typed, shaped handle on memory. Copying a Tensor copies the handle.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "tensor/context.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace fathom {

struct Gradient;  // tensor/tape.h

// How the rows of a weight matrix lie in memory. Only products and embed() know any but kRows.
enum class Layout : uint8_t {
  kRows,   // one after another
  kFours,  // block formats on the CPU: four rows side by side (quant/fours.h); in_rows() undoes it
};

class Tensor {
 public:
  Tensor() = default;

  // An op's output: from the context's arena (or its tape's memory, where there is one), on its device, not
  // initialised.
  static Tensor empty(Context& ctx, DType dtype, const Shape& shape);
  // A tensor that owns its memory, zeroed: new weights, caches, optimiser states.
  static Tensor owned(Device device, DType dtype, const Shape& shape);
  // A view of other memory (a mapped file), which `owner` keeps alive.
  static Tensor view(Device device, const void* data, DType dtype, const Shape& shape,
                     std::shared_ptr<const void> owner);
  // Host values on the context's device, in the arena.
  static Tensor from(Context& ctx, std::span<const float> values, const Shape& shape);
  static Tensor from(Context& ctx, std::span<const int32_t> values, const Shape& shape);

  bool defined() const { return data_ != nullptr; }
  explicit operator bool() const { return defined(); }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  Layout layout() const { return layout_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  int64_t dim(int i) const { return shape_[i]; }  // negative: from the end
  int64_t numel() const { return shape_.numel(); }
  // Elements from one row (last dimension) to the next along dimension i. Rows themselves are always dense.
  int64_t stride(int i) const { return strides_[i]; }
  bool is_contiguous() const;
  bool has_dense_rows() const;  // contiguous but for gaps between the rows of dimension 0
  int64_t nbytes() const;       // of a contiguous tensor

  // A compacted tensor (gather_rows) has room for all rows, and the first *row_count() of dimension 0 are
  // there. The count lives where the data lives: kernels read it, host code only hands it on. Null: every row
  // is there.
  const int32_t* row_count() const { return row_count_.get(); }
  Tensor counted_by(const Tensor& count) const;    // i32 (1)
  Tensor counted_like(const Tensor& other) const;  // with the other's row count, or none

  // Where its gradient adds up; null: not differentiable (always so at inference). Views share it.
  const std::shared_ptr<Gradient>& gradient() const { return gradient_; }
  Tensor with_gradient(std::shared_ptr<Gradient> gradient) const;

  // For kernels (ops/*_cpu.cc, *_cuda.cu), and for code that has checked device() == kCpu.
  const void* raw() const { return data_; }
  void* raw() { return const_cast<void*>(data_); }
  template <class T>
  const T* data() const {
    return static_cast<const T*>(data_);
  }
  template <class T>
  T* data() {
    return static_cast<T*>(const_cast<void*>(data_));
  }

  Tensor reshape(const Shape& shape) const;            // contiguous, or with dense rows that stay rows
  Tensor rows(int64_t begin, int64_t count) const;     // along dimension 0; of kFours: multiples of four
  Tensor with_layout(Layout layout) const;             // the same bytes, declared to be in this layout
  Tensor columns(int64_t begin, int64_t count) const;  // of a 2-D, non-block tensor: a strided view
  Tensor to(Context& ctx, Device device) const;        // owned copy on another device, or itself
  std::shared_ptr<const void> owner() const { return owner_; }
  bool is_only_handle() const { return owner_.use_count() == 1; }  // to its memory

 private:
  const void* data_ = nullptr;
  std::shared_ptr<const int32_t> row_count_;  // owned only where the count's tensor is
  std::shared_ptr<Gradient> gradient_;
  std::shared_ptr<const void> owner_;
  Shape shape_, strides_;
  DType dtype_ = DType::kF32;
  Device device_ = Device::kCpu;
  Layout layout_ = Layout::kRows;
};

// Host copies of small results.
void copy_to_host(Context& ctx, const Tensor& tensor, std::span<float> values);
void copy_to_host(Context& ctx, const Tensor& tensor, std::span<int32_t> values);
// Host values into a tensor that is there.
void copy_from_host(Context& ctx, std::span<const float> values, Tensor& tensor);

// Throws "linear: weight must be f32 (64, 32), got bf16 (64, 16)" where the tensor differs.
void expect(const Tensor& tensor, DType dtype, const Shape& shape, const char* op, const char* name);

}  // namespace fathom
