// The bytes of all tokens of a vocabulary, in an order in which those that begin alike stand together.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace fathom {

class TokenTrie {
 public:
  struct Node {
    uint32_t behind;  // the next node that does not begin with this one's bytes
    int32_t token;    // whose bytes end here, or -1
    uint32_t depth;   // bytes before this one
    uint8_t byte;
  };

  // Bytes are not empty.
  explicit TokenTrie(std::vector<std::pair<std::string, int32_t>> tokens);
  const std::vector<Node>& nodes() const { return nodes_; }

  // Calls found(id) for every token whose bytes `machine` steps along; the machine ends where it was.
  template <class Machine, class Found>
  void walk(Machine& machine, Found&& found) const {
    size_t depth = 0;
    for (size_t i = 0; i < nodes_.size();) {
      const Node& node = nodes_[i];
      machine.back(depth - node.depth);
      depth = node.depth;
      if (!machine.step(node.byte)) {
        i = node.behind;
        continue;
      }
      ++depth;
      ++i;
      for (int32_t id = node.token; id >= 0; id = twins_[static_cast<size_t>(id)]) found(id);
    }
    machine.back(depth);
  }

 private:
  std::vector<Node> nodes_;
  std::vector<int32_t> twins_;  // by token: another one of the same bytes, or -1
};

}  // namespace fathom
