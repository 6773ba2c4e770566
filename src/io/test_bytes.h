// For the tests: files built byte by byte, valid or not.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "io/gguf.h"

namespace fathom::testing_io {

class Bytes {
 public:
  template <class T>
  Bytes& put(T value) {
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    text_.append(raw, sizeof(T));
    return *this;
  }
  Bytes& u32(uint32_t value) { return put(value); }
  Bytes& u64(uint64_t value) { return put(value); }
  Bytes& raw(std::string_view text) {
    text_ += text;
    return *this;
  }
  Bytes& string(std::string_view text) { return u64(text.size()).raw(text); }  // as GGUF stores one
  Bytes& zeros(size_t count) {
    text_.append(count, '\0');
    return *this;
  }
  Bytes& pad_to(size_t alignment) { return zeros((alignment - text_.size() % alignment) % alignment); }
  const std::string& str() const { return text_; }

 private:
  std::string text_;
};

// A copy in memory of exactly that size, so that the address sanitizer sees a read past the end.
struct ExactCopy {
  explicit ExactCopy(std::string_view text)
      : memory(new std::byte[text.size()], std::default_delete<std::byte[]>()), size(text.size()) {
    std::memcpy(memory.get(), text.data(), text.size());
  }
  std::span<const std::byte> bytes() const { return {memory.get(), size}; }
  std::shared_ptr<std::byte> memory;
  size_t size;
};

// The message of the UserError that `action` must throw; "" (and a failure) when it throws none.
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << "more than one line: " << message;
    return message;
  }
  ADD_FAILURE() << "expected a UserError";
  return "";
}

// Reads the first and the last byte of a tensor.
inline int touch(const Tensor& tensor) {
  if (tensor.nbytes() == 0) return 0;
  const auto* bytes = static_cast<const unsigned char*>(tensor.raw());
  return bytes[0] + bytes[tensor.nbytes() - 1];
}

// (dims...) f32 with the values start, start + 1, …
inline Tensor counting_tensor(const Shape& shape, float start = 0) {
  Tensor tensor = Tensor::owned(Device::kCpu, DType::kF32, shape);
  for (int64_t i = 0; i < tensor.numel(); ++i) tensor.data<float>()[i] = start + static_cast<float>(i);
  return tensor;
}

// Any dtype, every byte different from its neighbours.
inline Tensor patterned_tensor(DType dtype, const Shape& shape) {
  Tensor tensor = Tensor::owned(Device::kCpu, dtype, shape);
  auto* bytes = static_cast<unsigned char*>(tensor.raw());
  for (int64_t i = 0; i < tensor.nbytes(); ++i) bytes[i] = static_cast<unsigned char>(i * 7 + 1);
  return tensor;
}

inline bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         (a.nbytes() == 0 || std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.nbytes())) == 0);
}

inline std::string temporary_path(const std::string& name) {
  // Tests run side by side, each in its own process.
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  return ::testing::TempDir() + test->test_suite_name() + "." + test->name() + "." +
         std::to_string(getpid()) + "." + name;
}

}  // namespace fathom::testing_io
