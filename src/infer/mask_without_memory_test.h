// A mask that runs out of memory: for tests of answers that end alone.
#pragma once

#include <new>
#include <span>

#include "infer/fathom.h"

namespace fathom {

// Has no memory for the third token.
class MaskWithoutMemory final : public TokenMask {
 public:
  void forbid(std::span<float>) override {
    if (tokens_ == 2) throw std::bad_alloc();
  }
  void accept(int32_t) override { ++tokens_; }
  void rollback(int64_t tokens) override { tokens_ -= tokens; }

 private:
  int64_t tokens_ = 0;
};

}  // namespace fathom
