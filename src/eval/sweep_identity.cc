#include "eval/sweep_identity.h"

#include "base/format.h"
#include "base/sha256.h"

namespace fathom {
namespace {

void add(Sha256& hash, const std::string& text) {
  hash.add(fmt::format("{} ", text.size()));
  hash.add(text);
}

void add(Sha256& hash, int64_t value) {
  hash.add(fmt::format("{} ", value));
}

void add(Sha256& hash, const std::vector<std::string>& list) {
  add(hash, static_cast<int64_t>(list.size()));
  for (const std::string& text : list) add(hash, text);
}

// Enough to tell files apart, short enough for a message.
std::string digits(Sha256& hash) {
  return hash.hex().substr(0, 16);
}

template <class T>
std::string hash_of(std::span<const T> values) {
  Sha256 hash;
  hash.add(std::as_bytes(values));
  return digits(hash);
}

}  // namespace

std::string identity_of(const Task& task, const EncodedTask& encoded) {
  const GenerationRules& rules = task.spec.generation;
  Sha256 hash;
  for (const int64_t value : {static_cast<int64_t>(task.spec.kind), static_cast<int64_t>(task.spec.extra),
                              rules.max_tokens, static_cast<int64_t>(rules.answer)})
    add(hash, value);
  add(hash, rules.stops);
  for (size_t i = 0; i < task.items.size(); ++i) {
    const EvalItem& item = task.items[i];
    add(hash, item.id);
    add(hash, item.group);
    add(hash, item.gold);
    add(hash, item.answers);
    hash.add(std::as_bytes(std::span(item.characters)));
    for (const TokenRequest& request : encoded.items[i]) {
      add(hash, request.scored);
      add(hash, static_cast<int64_t>(request.tokens.size()));
      hash.add(std::as_bytes(std::span(request.tokens)));
    }
  }
  return digits(hash);
}

std::string identity_of(std::span<const float> values) {
  return hash_of(values);
}

std::string identity_of(std::span<const int32_t> values) {
  return hash_of(values);
}

}  // namespace fathom
