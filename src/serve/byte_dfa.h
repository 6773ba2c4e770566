// Sets of byte strings that a finite automaton reads: numbers within bounds, patterns, lists of literals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

// What one schema may cost. Work is counted, not timed: a schema is refused on every machine or on none.
class CompileBudget {
 public:
  void step(int64_t count = 1);   // of work
  void nodes(int64_t count = 1);  // of automata that are not deterministic yet
  void states(int64_t count = 1);

  static constexpr int64_t kMostSteps = 40'000'000, kMostNodes = 200'000, kMostStates = 20'000;

 private:
  int64_t steps_ = 0, nodes_ = 0, states_ = 0;
};

// Bytes lead from node to node; several edges may fit.
class ByteNfa {
 public:
  using Node = uint32_t;
  struct Edge {
    uint8_t lowest, highest;
    Node to;
  };

  explicit ByteNfa(CompileBudget& budget) : budget_(budget) {}
  Node add();
  void edge(Node from, uint8_t lowest, uint8_t highest, Node to);
  void skip(Node from, Node to);  // without a byte
  // Edges along `text`.
  void path(Node from, std::string_view text, Node to);

  struct NodeEdges {
    std::vector<Edge> edges;
    std::vector<Node> skips;
  };
  const NodeEdges& at(Node node) const { return nodes_[node]; }
  size_t size() const { return nodes_.size(); }
  CompileBudget& budget() const { return budget_; }

 private:
  CompileBudget& budget_;
  std::vector<NodeEdges> nodes_;
};

// From every state some text leads to an accepting one. State 0 is the start.
class ByteDfa {
 public:
  ByteDfa() = default;
  // What leads from `start` to `accept`. Where there is nothing, size() is 0.
  ByteDfa(const ByteNfa& nfa, ByteNfa::Node start, ByteNfa::Node accept);

  size_t size() const { return accepts_.size(); }
  int32_t next(uint32_t state, uint8_t byte) const {  // -1: none
    for (uint32_t i = first_[state]; i < first_[state + 1]; ++i) {
      if (byte <= edges_[i].highest)
        return byte >= edges_[i].lowest ? static_cast<int32_t>(edges_[i].to) : -1;
    }
    return -1;
  }
  bool accepts(uint32_t state) const { return accepts_[state] != 0; }
  bool ends(uint32_t state) const { return first_[state] == first_[state + 1]; }  // nothing may follow

 private:
  friend class SubsetConstruction;
  std::vector<uint32_t> first_;       // by state, and one more
  std::vector<ByteNfa::Edge> edges_;  // of each state, ascending
  std::vector<uint8_t> accepts_;
};

}  // namespace fathom
