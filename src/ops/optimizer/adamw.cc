#include "ops/optimizer/adamw.h"

#include "base/format.h"

namespace fathom {

void adamw_kernel(CpuBackend dev, AdamWBuffers& buffers, std::span<const AdamWSegment> segments,
                  const AdamWParams& params);
void adamw_kernel(CudaBackend dev, AdamWBuffers& buffers, std::span<const AdamWSegment> segments,
                  const AdamWParams& params);

void adamw(Context& ctx, AdamWBuffers& buffers, std::span<const AdamWSegment> segments,
           const AdamWParams& params) {
  const Shape shape{buffers.value.numel()};
  expect(buffers.value, DType::kF32, shape, "adamw", "value");
  expect(buffers.gradient, DType::kF32, shape, "adamw", "gradient");
  expect(buffers.mean, DType::kF32, shape, "adamw", "mean");
  expect(buffers.square, DType::kF32, shape, "adamw", "square");
  for (const AdamWSegment& segment : segments) {
    require(segment.begin >= 0 && segment.begin % 4 == 0 && segment.begin <= segment.end &&
                segment.end <= shape[0],
            "adamw: a segment must begin at a multiple of 4 and lie within {} elements, got [{}, {})",
            shape[0], segment.begin, segment.end);
  }
  on_device(ctx, [&](auto dev) { adamw_kernel(dev, buffers, segments, params); });
}

}  // namespace fathom
