#include "tensor/tensor.h"

#include "base/format.h"
#include "tensor/arena.h"
#include "tensor/memory.h"
#include "tensor/tape.h"

namespace fathom {
namespace {

Shape dense_strides(const Shape& shape) {
  int64_t strides[Shape::kMaxRank];
  int64_t step = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= shape[i];
  }
  Shape out;
  for (int i = 0; i < shape.rank(); ++i) out.push_back(strides[i]);
  return out;
}

int64_t dense_bytes(DType dtype, const Shape& shape) {
  if (shape.rank() == 0) return row_bytes(dtype, 1);
  const int64_t row = row_bytes(dtype, shape.last());
  return shape.last() == 0 ? 0 : shape.numel() / shape.last() * row;
}

template <class T>
Tensor from_host(Context& ctx, std::span<const T> values, DType dtype, const Shape& shape) {
  if (static_cast<int64_t>(values.size()) != shape.numel()) {
    fail("Tensor::from: {} values for shape {}", values.size(), to_string(shape));
  }
  Tensor tensor = Tensor::empty(ctx, dtype, shape);
  copy_bytes(ctx, tensor.raw(), tensor.device(), values.data(), Device::kCpu, values.size_bytes());
  return tensor;
}

template <class T>
void to_host(Context& ctx, const Tensor& tensor, DType dtype, std::span<T> values) {
  if (tensor.dtype() != dtype || !tensor.is_contiguous() ||
      tensor.numel() != static_cast<int64_t>(values.size())) {
    fail("copy_to_host: expected {} values of {}, got {} {}", values.size(), name_of(dtype),
         name_of(tensor.dtype()), to_string(tensor.shape()));
  }
  copy_bytes(ctx, values.data(), Device::kCpu, tensor.raw(), tensor.device(), values.size_bytes());
}

}  // namespace

std::string to_string(const Shape& shape) {
  std::string text = "(";
  for (int i = 0; i < shape.rank(); ++i) text += fmt::format("{}{}", i ? ", " : "", shape[i]);
  return text + ")";
}

Tensor Tensor::empty(Context& ctx, DType dtype, const Shape& shape) {
  const auto bytes = static_cast<size_t>(dense_bytes(dtype, shape));
  if (ctx.tape()) {
    std::shared_ptr<void> memory = ctx.tape()->allocate(bytes);
    const void* data = memory.get();
    return view(ctx.device(), data, dtype, shape, std::move(memory));
  }
  return view(ctx.device(), ctx.arena().allocate(bytes), dtype, shape, nullptr);
}

Tensor Tensor::owned(Device device, DType dtype, const Shape& shape) {
  std::shared_ptr<void> memory = allocate(device, static_cast<size_t>(dense_bytes(dtype, shape)));
  const void* data = memory.get();
  return view(device, data, dtype, shape, std::move(memory));
}

Tensor Tensor::view(Device device, const void* data, DType dtype, const Shape& shape,
                    std::shared_ptr<const void> owner) {
  Tensor tensor;
  tensor.data_ = data;
  tensor.owner_ = std::move(owner);
  tensor.shape_ = shape;
  tensor.strides_ = dense_strides(shape);
  tensor.dtype_ = dtype;
  tensor.device_ = device;
  return tensor;
}

Tensor Tensor::from(Context& ctx, std::span<const float> values, const Shape& shape) {
  return from_host(ctx, values, DType::kF32, shape);
}

Tensor Tensor::from(Context& ctx, std::span<const int32_t> values, const Shape& shape) {
  return from_host(ctx, values, DType::kI32, shape);
}

Tensor Tensor::counted_by(const Tensor& count) const {
  Tensor out = *this;
  out.row_count_ = std::shared_ptr<const int32_t>(count.owner_, count.data<int32_t>());
  return out;
}

Tensor Tensor::counted_like(const Tensor& other) const {
  Tensor out = *this;
  out.row_count_ = other.row_count_;
  return out;
}

Tensor Tensor::with_gradient(std::shared_ptr<Gradient> gradient) const {
  Tensor out = *this;
  out.gradient_ = std::move(gradient);
  return out;
}

Tensor Tensor::with_layout(Layout layout) const {
  Tensor out = *this;
  out.layout_ = layout;
  return out;
}

bool Tensor::is_contiguous() const {
  return strides_ == dense_strides(shape_);
}

int64_t Tensor::nbytes() const {
  return dense_bytes(dtype_, shape_);
}

bool Tensor::has_dense_rows() const {
  if (rank() < 2) return is_contiguous();
  const Shape dense = dense_strides(shape_);
  for (int i = 1; i < rank(); ++i) {
    if (strides_[i] != dense[i]) return false;
  }
  return true;
}

Tensor Tensor::reshape(const Shape& shape) const {
  const bool apart = !is_contiguous() && has_dense_rows() && shape.rank() > 1 && shape[0] == dim(0);
  if (!(is_contiguous() || apart) || shape.numel() != numel() ||
      (is_block_format(dtype_) && shape.last() != shape_.last()) ||
      (layout_ == Layout::kFours && !(shape == shape_))) {
    fail("reshape: {} {} cannot become {}", name_of(dtype_), to_string(shape_), to_string(shape));
  }
  if (row_count_ && shape[0] != dim(0))
    fail("reshape: {} is compacted, its rows cannot become {}", to_string(shape_), to_string(shape));
  Tensor out = *this;
  out.shape_ = shape;
  out.strides_ = dense_strides(shape);
  if (!apart) return out;
  out.strides_ = {strides_[0]};
  for (int i = 1; i < shape.rank(); ++i) out.strides_.push_back(dense_strides(shape)[i]);
  return out;
}

Tensor Tensor::rows(int64_t begin, int64_t count) const {
  if (rank() < 1 || begin < 0 || count < 0 || begin + count > dim(0)) {
    fail("rows: [{}, {}) of {}", begin, begin + count, to_string(shape_));
  }
  if (layout_ == Layout::kFours && (begin % 4 != 0 || count % 4 != 0))
    fail("rows: [{}, {}) of {} is not whole fours", begin, begin + count, to_string(shape_));
  Tensor out = *this;
  const int64_t step = rank() == 1 ? row_bytes(dtype_, 1) : row_bytes(dtype_, strides_[0]);
  out.data_ = static_cast<const std::byte*>(data_) + begin * step;
  out.row_count_ = nullptr;
  out.gradient_ = nullptr;  // a part's gradient would have another shape: nobody differentiates through one
  out.shape_ = Shape{count};
  for (int i = 1; i < rank(); ++i) out.shape_.push_back(dim(i));
  return out;
}

Tensor Tensor::columns(int64_t begin, int64_t count) const {
  if (rank() != 2 || is_block_format(dtype_) || begin < 0 || count < 0 || begin + count > dim(1)) {
    fail("columns: [{}, {}) of {} {}", begin, begin + count, name_of(dtype_), to_string(shape_));
  }
  Tensor out = *this;
  out.data_ = static_cast<const std::byte*>(data_) + begin * row_bytes(dtype_, 1);
  out.shape_ = {dim(0), count};
  out.gradient_ = nullptr;  // as of rows()
  return out;
}

Tensor Tensor::to(Context& ctx, Device device) const {
  if (device == device_) return *this;
  if (!is_contiguous()) fail("to: {} is not contiguous", to_string(shape_));
  if (layout_ != Layout::kRows) fail("to: {} is in fours, which only the CPU multiplies", to_string(shape_));
  Tensor out = owned(device, dtype_, shape_);
  copy_bytes(ctx, out.raw(), device, data_, device_, static_cast<size_t>(nbytes()));
  return out;
}

void copy_to_host(Context& ctx, const Tensor& tensor, std::span<float> values) {
  to_host(ctx, tensor, DType::kF32, values);
}

void copy_to_host(Context& ctx, const Tensor& tensor, std::span<int32_t> values) {
  to_host(ctx, tensor, DType::kI32, values);
}

void copy_from_host(Context& ctx, std::span<const float> values, Tensor& tensor) {
  expect(tensor, DType::kF32, tensor.shape(), "copy_from_host", "tensor");
  if (!tensor.is_contiguous() || tensor.numel() != static_cast<int64_t>(values.size()))
    fail("copy_from_host: {} values for shape {}", values.size(), to_string(tensor.shape()));
  copy_bytes(ctx, tensor.raw(), tensor.device(), values.data(), Device::kCpu, values.size_bytes());
}

void expect(const Tensor& tensor, DType dtype, const Shape& shape, const char* op, const char* name) {
  if (tensor.defined() && tensor.dtype() == dtype && tensor.shape() == shape) return;
  if (!tensor.defined())
    fail("{}: {} must be {} {}, got nothing", op, name, name_of(dtype), to_string(shape));
  fail("{}: {} must be {} {}, got {} {}", op, name, name_of(dtype), to_string(shape), name_of(tensor.dtype()),
       to_string(tensor.shape()));
}

}  // namespace fathom
