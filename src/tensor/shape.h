#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace fathom {

// Up to four dimensions, outermost first.
class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) {
    for (int64_t d : dims) dims_[static_cast<size_t>(rank_++)] = d;
  }

  int rank() const { return rank_; }
  int64_t operator[](int i) const { return dims_[static_cast<size_t>(i < 0 ? rank_ + i : i)]; }
  int64_t last() const { return (*this)[-1]; }
  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= (*this)[i];
    return n;
  }
  void push_back(int64_t d) { dims_[static_cast<size_t>(rank_++)] = d; }
  bool operator==(const Shape& other) const {
    if (rank_ != other.rank_) return false;
    for (int i = 0; i < rank_; ++i) {
      if ((*this)[i] != other[i]) return false;
    }
    return true;
  }

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

std::string to_string(const Shape& shape);  // "(5, 64)"

}  // namespace fathom
