// Sums over the processes of a run. One process: nothing to do.
#pragma once

#include <span>

namespace fathom {

class Comm {
 public:
  virtual ~Comm() = default;
  virtual int rank() const { return 0; }
  virtual int size() const { return 1; }
  virtual void sum(std::span<float>) {}
  virtual void sum(std::span<double>) {}
};

}  // namespace fathom
