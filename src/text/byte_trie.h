// Strings by their bytes, for "which of them does this text begin with".
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace fathom {

class ByteTrie {
 public:
  void add(std::string_view key, int32_t value);  // value >= 0; a key added twice keeps the first value
  bool empty() const { return values_.size() == 1; }

  // The longest key that text begins with at `at`: its length, 0 when there is none.
  size_t longest(std::string_view text, size_t at, int32_t* value) const;

  // Calls found(length, value) for every key that text begins with at `at`, shortest first.
  template <class Found>
  void prefixes(std::string_view text, size_t at, Found found) const {
    uint32_t node = 0;
    for (size_t i = at; i < text.size(); ++i) {
      node = child(node, static_cast<uint8_t>(text[i]));
      if (node == 0) return;
      if (values_[node] >= 0) found(i + 1 - at, values_[node]);
    }
  }

  // Whether some key begins with this byte: most positions of a text are passed over by this alone.
  bool starts(uint8_t byte) const { return first_[byte] != 0; }

 private:
  struct Slot {
    uint64_t key = 0;  // node << 8 | byte, plus 1; 0: empty
    uint32_t child = 0;
  };
  uint32_t child(uint32_t node, uint8_t byte) const;
  void grow();

  uint32_t first_[256] = {};         // the root's children
  std::vector<int32_t> values_{-1};  // by node; -1: no key ends here
  std::vector<Slot> slots_;          // the other nodes' children, open addressing
  size_t used_ = 0;
};

}  // namespace fathom
