#include "serve/token_trie.h"

#include <algorithm>

namespace fathom {

TokenTrie::TokenTrie(std::vector<std::pair<std::string, int32_t>> tokens) {
  std::sort(tokens.begin(), tokens.end());
  std::vector<uint32_t> open;  // nodes of the bytes before
  const std::string* last = nullptr;
  const auto close = [&](size_t depth) {
    for (; open.size() > depth; open.pop_back())
      nodes_[open.back()].behind = static_cast<uint32_t>(nodes_.size());
  };
  for (const auto& [bytes, id] : tokens) {
    if (static_cast<size_t>(id) >= twins_.size()) twins_.resize(static_cast<size_t>(id) + 1, -1);
    size_t common = 0;
    while (last && common < std::min(last->size(), bytes.size()) && (*last)[common] == bytes[common])
      ++common;
    close(common);
    for (size_t i = common; i < bytes.size(); ++i) {
      open.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({0, -1, static_cast<uint32_t>(i), static_cast<uint8_t>(bytes[i])});
    }
    Node& end = nodes_[open.back()];
    twins_[static_cast<size_t>(id)] = end.token;
    end.token = id;
    last = &bytes;
  }
  close(0);
}

}  // namespace fathom
