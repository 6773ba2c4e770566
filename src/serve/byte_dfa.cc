#include "serve/byte_dfa.h"

#include <algorithm>
#include <map>

#include "base/format.h"

namespace fathom {

void CompileBudget::step(int64_t count) {
  if ((steps_ += count) > kMostSteps) fail("JSON schema: it takes more than {} steps to compile", kMostSteps);
}

void CompileBudget::nodes(int64_t count) {
  if ((nodes_ += count) > kMostNodes)
    fail("JSON schema: its patterns, numbers and literals need more than {} nodes", kMostNodes);
}

void CompileBudget::states(int64_t count) {
  if ((states_ += count) > kMostStates) fail("JSON schema: it needs more than {} states", kMostStates);
}

ByteNfa::Node ByteNfa::add() {
  budget_.nodes();
  nodes_.emplace_back();
  return static_cast<Node>(nodes_.size() - 1);
}

void ByteNfa::edge(Node from, uint8_t lowest, uint8_t highest, Node to) {
  nodes_[from].edges.push_back({lowest, highest, to});
}

void ByteNfa::skip(Node from, Node to) {
  nodes_[from].skips.push_back(to);
}

void ByteNfa::path(Node from, std::string_view text, Node to) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    const Node next = i + 1 == text.size() ? to : add();
    edge(from, byte, byte, next);
    from = next;
  }
  if (text.empty()) skip(from, to);
}

// A state of the result is a set of nodes.
class SubsetConstruction {
 public:
  SubsetConstruction(const ByteNfa& nfa, ByteNfa::Node accept)
      : nfa_(nfa), accept_(accept), seen_(nfa.size(), 0) {}

  ByteDfa run(ByteNfa::Node start) {
    state_of({start});
    for (size_t state = 0; state < sets_.size(); ++state) expand(state);
    return trimmed();
  }

 private:
  using Nodes = std::vector<ByteNfa::Node>;

  // With all that can be reached without a byte, sorted.
  void close(Nodes& nodes) {
    ++round_;
    size_t kept = 0;
    for (const ByteNfa::Node node : nodes) {
      if (seen_[node] == round_) continue;
      seen_[node] = round_;
      nodes[kept++] = node;
    }
    nodes.resize(kept);
    for (size_t i = 0; i < nodes.size(); ++i) {
      for (const ByteNfa::Node to : nfa_.at(nodes[i]).skips) {
        nfa_.budget().step();
        if (seen_[to] == round_) continue;
        seen_[to] = round_;
        nodes.push_back(to);
      }
    }
    std::sort(nodes.begin(), nodes.end());
    nfa_.budget().step(std::ssize(nodes));
  }

  uint32_t state_of(Nodes nodes) {
    close(nodes);
    const auto [at, is_new] = states_.try_emplace(nodes, static_cast<uint32_t>(sets_.size()));
    if (is_new) {
      nfa_.budget().states();
      sets_.push_back(&at->first);
      edges_.emplace_back();
    }
    return at->second;
  }

  // The edges of one state: between two cuts the same edges of the nodes fit.
  void expand(size_t state) {
    Nodes edges_of = *sets_[state];
    std::vector<ByteNfa::Edge> all;
    std::vector<int> cuts;
    for (const ByteNfa::Node node : edges_of) {
      for (const ByteNfa::Edge& edge : nfa_.at(node).edges) {
        all.push_back(edge);
        cuts.push_back(edge.lowest);
        cuts.push_back(edge.highest + 1);
      }
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      nfa_.budget().step(std::ssize(all));
      Nodes to;
      for (const ByteNfa::Edge& edge : all) {
        if (edge.lowest <= cuts[i] && cuts[i] <= edge.highest) to.push_back(edge.to);
      }
      if (to.empty()) continue;
      const uint32_t next = state_of(std::move(to));
      append(edges_[state], static_cast<uint8_t>(cuts[i]), static_cast<uint8_t>(cuts[i + 1] - 1), next);
    }
  }

  static void append(std::vector<ByteNfa::Edge>& edges, uint8_t lowest, uint8_t highest, uint32_t to) {
    if (!edges.empty() && edges.back().to == to && edges.back().highest + 1 == lowest)
      edges.back().highest = highest;
    else
      edges.push_back({lowest, highest, to});
  }

  // Whether each state leads to an accepting one.
  std::vector<uint8_t> useful() const {
    std::vector<std::vector<uint32_t>> from(sets_.size());
    std::vector<uint32_t> found;
    std::vector<uint8_t> useful(sets_.size(), 0);
    for (uint32_t state = 0; state < sets_.size(); ++state) {
      for (const ByteNfa::Edge& edge : edges_[state]) from[edge.to].push_back(state);
      if (!accepting(state)) continue;
      useful[state] = 1;
      found.push_back(state);
    }
    while (!found.empty()) {
      const uint32_t state = found.back();
      found.pop_back();
      for (const uint32_t before : from[state]) {
        if (useful[before]) continue;
        useful[before] = 1;
        found.push_back(before);
      }
    }
    return useful;
  }

  bool accepting(size_t state) const {
    return std::binary_search(sets_[state]->begin(), sets_[state]->end(), accept_);
  }

  ByteDfa trimmed() const {
    const std::vector<uint8_t> keep = useful();
    ByteDfa out;
    if (!keep[0]) return out;
    std::vector<uint32_t> number(sets_.size(), 0);
    uint32_t count = 0;
    for (size_t state = 0; state < sets_.size(); ++state) number[state] = keep[state] ? count++ : 0;
    for (size_t state = 0; state < sets_.size(); ++state) {
      if (!keep[state]) continue;
      out.first_.push_back(static_cast<uint32_t>(out.edges_.size()));
      out.accepts_.push_back(accepting(state));
      for (const ByteNfa::Edge& edge : edges_[state]) {
        if (keep[edge.to]) out.edges_.push_back({edge.lowest, edge.highest, number[edge.to]});
      }
    }
    out.first_.push_back(static_cast<uint32_t>(out.edges_.size()));
    return out;
  }

  const ByteNfa& nfa_;
  const ByteNfa::Node accept_;
  std::vector<uint64_t> seen_;  // by node: the round that saw it last
  uint64_t round_ = 0;
  std::map<Nodes, uint32_t> states_;
  std::vector<const Nodes*> sets_;
  std::vector<std::vector<ByteNfa::Edge>> edges_;
};

ByteDfa::ByteDfa(const ByteNfa& nfa, ByteNfa::Node start, ByteNfa::Node accept)
    : ByteDfa(SubsetConstruction(nfa, accept).run(start)) {}

}  // namespace fathom
