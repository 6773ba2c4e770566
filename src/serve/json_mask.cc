#include "serve/json_mask.h"

#include <algorithm>
#include <limits>
#include <list>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "serve/json_schema.h"
#include "serve/json_vocabulary.h"

namespace fathom {
namespace {

constexpr size_t kCacheBytes = size_t{2} << 20;  // of the masks of one schema
constexpr size_t kSchemas = 16;                  // that stay compiled

// The newest entries by key.
template <class Value>
class Recent {
 public:
  explicit Recent(size_t most) : most_(most) {}

  std::shared_ptr<Value> find(const std::string& key) {
    const auto at = places_.find(key);
    if (at == places_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, at->second);
    return at->second->second;
  }
  void add(const std::string& key, std::shared_ptr<Value> value) {
    if (places_.contains(key)) return;
    entries_.emplace_front(key, std::move(value));
    places_.emplace(key, entries_.begin());
    if (entries_.size() <= most_) return;
    places_.erase(entries_.back().first);
    entries_.pop_back();
  }

 private:
  using Entries = std::list<std::pair<std::string, std::shared_ptr<Value>>>;
  size_t most_;
  Entries entries_;
  std::unordered_map<std::string, typename Entries::iterator> places_;
};

// A grammar and the masks of the states that were seen last. All answers of all requests with it share it.
class MaskedGrammar {
 public:
  MaskedGrammar(std::shared_ptr<const JsonVocabulary> words, JsonGrammar compiled)
      : vocabulary(std::move(words)),
        grammar(std::make_shared<const JsonGrammar>(std::move(compiled))),
        masks_(std::clamp<size_t>(kCacheBytes / (vocabulary->size() / 8 + 1), 16, 4096)) {}

  std::shared_ptr<const TokenBits> allowed(JsonMachine& machine, std::string& signature) {
    machine.signature(signature);
    {
      const std::lock_guard lock(mutex_);
      if (auto found = masks_.find(signature)) return found;
    }
    auto made = std::make_shared<const TokenBits>(vocabulary->allowed(machine));
    const std::lock_guard lock(mutex_);
    masks_.add(signature, made);
    return made;
  }

  const std::shared_ptr<const JsonVocabulary> vocabulary;
  const std::shared_ptr<const JsonGrammar> grammar;

 private:
  std::mutex mutex_;
  Recent<const TokenBits> masks_;
};

class JsonMask final : public TokenMask {
 public:
  explicit JsonMask(std::shared_ptr<MaskedGrammar> grammar)
      : grammar_(std::move(grammar)), machine_(grammar_->grammar) {}

  void forbid(std::span<float> logits) override {
    if (wrong_ > 0)
      std::fill(logits.begin(), logits.end(), -std::numeric_limits<float>::infinity());
    else
      grammar_->allowed(machine_, signature_)->keep(logits);
  }

  // Behind a token that was forbidden nothing may come, until it is taken back.
  void accept(int32_t token) override {
    size_t read = 0;
    bool right = wrong_ == 0;
    if (right && grammar_->vocabulary->ends(token)) {
      right = machine_.complete();
    } else if (right) {
      const std::string& piece = grammar_->vocabulary->piece(token);
      while (read < piece.size() && machine_.step(static_cast<uint8_t>(piece[read]))) ++read;
      right = read > 0 && read == piece.size();
    }
    wrong_ += !right;
    tokens_.push_back({static_cast<uint32_t>(read), right});
  }

  void rollback(int64_t tokens) override {
    for (; tokens > 0 && !tokens_.empty(); --tokens) {
      machine_.back(tokens_.back().bytes);
      wrong_ -= !tokens_.back().right;
      tokens_.pop_back();
    }
  }

 private:
  struct Accepted {
    uint32_t bytes;
    bool right;
  };
  std::shared_ptr<MaskedGrammar> grammar_;
  JsonMachine machine_;
  std::vector<Accepted> tokens_;
  int64_t wrong_ = 0;  // tokens that no text of the grammar has there
  std::string signature_;
};

JsonMasks::Factory factory_of(std::shared_ptr<MaskedGrammar> grammar) {
  return [grammar = std::move(grammar)] { return std::make_unique<JsonMask>(grammar); };
}

}  // namespace

class JsonMaskMaker {
 public:
  JsonMaskMaker(const Tokenizer& tokenizer, std::vector<int32_t> end_ids)
      : vocabulary_(std::make_shared<const JsonVocabulary>(tokenizer, std::move(end_ids))) {}

  template <class Compile>
  JsonMasks::Factory factory(const std::string& key, Compile&& compile) {
    {
      const std::lock_guard lock(mutex_);
      if (auto found = grammars_.find(key)) return factory_of(std::move(found));
    }
    auto made = std::make_shared<MaskedGrammar>(vocabulary_, compile());
    const std::lock_guard lock(mutex_);
    grammars_.add(key, made);
    return factory_of(std::move(made));
  }

 private:
  std::shared_ptr<const JsonVocabulary> vocabulary_;
  std::mutex mutex_;
  Recent<MaskedGrammar> grammars_{kSchemas};
};

JsonMasks::JsonMasks(const Tokenizer& tokenizer, std::vector<int32_t> end_ids)
    : maker_(std::make_shared<JsonMaskMaker>(tokenizer, std::move(end_ids))) {}
JsonMasks::~JsonMasks() = default;

JsonMasks::Factory JsonMasks::any_object() const {
  return maker_->factory("", any_json_object);  // no schema is empty
}

JsonMasks::Factory JsonMasks::schema(const std::string& schema_json) const {
  return maker_->factory("schema " + schema_json, [&] { return compile_json_schema(schema_json); });
}

}  // namespace fathom
