// More of a device's memory was asked for than there is.
#pragma once

#include <cstddef>

#include "base/error.h"

namespace fathom {

// The message says what was asked, what is free, and what needs less in general.
class OutOfMemory : public UserError {
 public:
  // device: in the message, "GPU"
  OutOfMemory(const std::string& device, size_t wanted, size_t free, size_t total);
  // Of memory without a count of what is free: kind is "page-locked".
  OutOfMemory(const std::string& kind, size_t wanted);
  // The message without its advice, for callers that give better advice.
  const std::string& facts() const { return facts_; }

 private:
  explicit OutOfMemory(const std::string& facts);
  std::string facts_;
};

}  // namespace fathom
