// Row sets and small tensors for tests.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "tensor/rows.h"

namespace fathom {

inline RowSet some_rows(Context& ctx, std::vector<int32_t> ids, int32_t count) {
  const std::vector<int32_t> number{count};
  return RowSet::some(Tensor::from(ctx, ids, {static_cast<int64_t>(ids.size())}),
                      Tensor::from(ctx, number, {1}));
}

// `rows` ids of which the first few are kept: every third row, from the second.
inline RowSet every_third(Context& ctx, int64_t rows) {
  std::vector<int32_t> ids;
  for (int32_t r = 1; r < rows; r += 3) ids.push_back(r);
  const auto count = static_cast<int32_t>(ids.size());
  ids.resize(static_cast<size_t>(rows), -1);  // past the count: no kernel reads them
  return some_rows(ctx, ids, count);
}
inline bool is_third(int64_t row) {
  return row % 3 == 1;
}

inline Tensor floats(Context& ctx, const std::vector<float>& values) {
  return Tensor::from(ctx, values, {static_cast<int64_t>(values.size())});
}
inline Tensor floats(Context& ctx, const std::vector<float>& values, const Shape& shape) {
  return Tensor::from(ctx, values, shape);
}
inline Tensor ints(Context& ctx, const std::vector<int32_t>& values) {
  return Tensor::from(ctx, values, {static_cast<int64_t>(values.size())});
}
inline Tensor ints(Context& ctx, const std::vector<int32_t>& values, const Shape& shape) {
  return Tensor::from(ctx, values, shape);
}

inline double number(const Tensor& t, int64_t i) {
  return t.data<float>()[i];
}

template <class T = float>
std::vector<T> values_of(const Tensor& t) {
  return {t.data<T>(), t.data<T>() + t.numel()};
}

// Of a tensor on any device.
template <class T = float>
std::vector<T> host_values(Context& ctx, const Tensor& t) {
  std::vector<T> values(static_cast<size_t>(t.numel()));
  copy_to_host(ctx, t, values);
  return values;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// What op() says when it refuses; empty if it does not.
template <class Fn>
std::string refusal(Fn op) {
  try {
    op();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

}  // namespace fathom
