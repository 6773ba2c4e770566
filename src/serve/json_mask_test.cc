#include "serve/json_mask.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "serve/json_machine.h"
#include "serve/json_schema.h"
#include "serve/json_schemas_test.h"
#include "serve/json_validator_test.h"
#include "serve/json_vocabulary.h"
#include "support/test_paths.h"
#include "text/unicode.h"

namespace fathom {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct Words {
  std::shared_ptr<const Tokenizer> tokenizer;
  int32_t end;
  JsonMasks masks;

  explicit Words(const std::string& path)
      : tokenizer(load_tokenizer(path)), end(tokenizer->eos()), masks(*tokenizer, {end}) {}
  size_t vocab() const { return static_cast<size_t>(tokenizer->vocab_size()); }
};

std::string builtin_path() {
  return FATHOM_TEST_DATA "/../../models/builtin/tokenizer.json";
}

// The model's vocabulary where it is here, or the one that ships.
std::vector<std::string> tokenizer_paths() {
  std::vector<std::string> paths{builtin_path(), FATHOM_TEST_DATA "/stories260k/tokenizer.bin"};
  if (const char* path = std::getenv("FATHOM_SMOLLM2")) paths.emplace_back(path);
  return paths;
}

std::vector<int32_t> allowed(TokenMask& mask, size_t vocab) {
  std::vector<float> logits(vocab + 7, 0.0f);  // models have more logits than tokens
  mask.forbid(logits);
  for (size_t id = vocab; id < logits.size(); ++id) EXPECT_EQ(logits[id], -INFINITY);
  std::vector<int32_t> ids;
  for (size_t id = 0; id < vocab; ++id) {
    if (logits[id] == 0) ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

// Draws tokens that are allowed, sooner or later those that come to an end.
class Walk {
 public:
  Walk(const Words& words, TokenMask& mask, uint64_t seed) : words_(words), mask_(mask), rng_(seed) {}

  // Returns whether the text ended.
  bool run(int most) {
    for (int i = 0; i < most; ++i) {
      const std::vector<int32_t> ids = allowed(mask_, words_.vocab());
      if (ids.empty()) {
        ADD_FAILURE() << "nothing may follow " << text;
        return false;
      }
      const int32_t id = pick(ids, i);
      mask_.accept(id);
      tokens.push_back(id);
      if (id == words_.end) return true;
      text += words_.tokenizer->piece(id);
    }
    return false;
  }

  std::string text;
  std::vector<int32_t> tokens;

 private:
  int32_t pick(const std::vector<int32_t>& ids, int step) {
    if (step > 40 || rng_.below(3) == 0) {
      for (const char* end : {"\"", "}", "]"}) {
        for (const int32_t id : ids) {
          if (id == words_.end || words_.tokenizer->piece(id) == end) return id;
        }
      }
    }
    return ids[rng_.below(static_cast<uint32_t>(ids.size()))];
  }

  const Words& words_;
  TokenMask& mask_;
  Rng rng_;
};

// JSON with each key once in an object.
void parse_once(const std::string& text) {
  std::vector<std::vector<std::string>> keys;
  const OrderedJson value =
      OrderedJson::parse(text, [&](int, OrderedJson::parse_event_t event, OrderedJson& part) {
        if (event == OrderedJson::parse_event_t::object_start) keys.emplace_back();
        if (event == OrderedJson::parse_event_t::object_end) keys.pop_back();
        if (event == OrderedJson::parse_event_t::key) {
          const auto name = part.get<std::string>();
          EXPECT_EQ(std::count(keys.back().begin(), keys.back().end(), name), 0) << text;
          keys.back().push_back(name);
        }
        return true;
      });
  EXPECT_FALSE(value.is_discarded());
}

// Whatever is drawn is a value of the schema.
TEST(JsonMask, RandomWalksAreValid) {
  for (const std::string& path : tokenizer_paths()) {
    const Words words(path);
    const bool large = words.vocab() > 10000;
    int ended = 0, walks = 0;
    for (const std::string& schema : hundred_schemas()) {
      const auto factory = words.masks.schema(schema);
      const JsonValidator valid(schema);
      for (uint64_t seed = 0; seed < (large ? 1 : 5); ++seed) {
        const auto mask = factory();
        Walk walk(words, *mask, seed * 1000 + static_cast<uint64_t>(walks));
        ++walks;
        if (!walk.run(300)) continue;
        ++ended;
        ASSERT_TRUE(is_valid_utf8(walk.text)) << schema;
        ASSERT_NO_THROW(parse_once(walk.text)) << schema << " " << walk.text;
        ASSERT_TRUE(valid(walk.text)) << schema << " " << walk.text;
      }
    }
    EXPECT_GT(ended, walks * 9 / 10) << path;
  }
}

void expect_allowed(const Words& words, const JsonMasks::Factory& factory, const std::string& text,
                    const std::string& schema) {
  const auto mask = factory();
  std::vector<int32_t> ids = words.tokenizer->encode(text, {.add_special = false, .parse_special = false});
  if (words.tokenizer->piece(ids[0]).starts_with(' ')) return;  // a tokenizer that puts a space before texts
  ids.push_back(words.end);
  for (const int32_t id : ids) {
    const std::vector<int32_t> may = allowed(*mask, words.vocab());
    ASSERT_TRUE(std::binary_search(may.begin(), may.end(), id))
        << schema << " " << text << ": " << words.tokenizer->token(id);
    mask->accept(id);
  }
}

// Whatever is a value of the schema, in the layout that is promised, can be drawn.
TEST(JsonMask, ValidTextsAreAllowed) {
  const Words words(tokenizer_paths().back());
  int checked = 0;
  for (const std::string& schema : hundred_schemas()) {
    const auto factory = words.masks.schema(schema);
    const JsonValidator valid(schema);
    for (uint64_t seed = 0; seed < 6; ++seed) {
      const std::optional<std::string> value = draw_value(schema, seed);
      if (!value) continue;
      ASSERT_TRUE(valid(*value)) << schema << " " << *value;
      expect_allowed(words, factory, *value, schema);
      if (testing::Test::HasFatalFailure()) return;
      ++checked;
    }
  }
  EXPECT_GT(checked, 400);
}

TEST(JsonMask, RollbackIsAReplay) {
  const Words words(builtin_path());
  Rng rng(3);
  const std::vector<std::string> schemas = hundred_schemas();
  for (size_t s = 0; s < schemas.size(); s += 4) {
    const auto factory = words.masks.schema(schemas[s]);
    const auto mask = factory();
    std::vector<int32_t> tokens;
    for (int i = 0; i < 25; ++i) {
      std::vector<int32_t> ids = allowed(*mask, words.vocab());
      const bool wrong = rng.below(8) == 0;  // a token that may not come
      const int32_t id = wrong || ids.empty()
                             ? static_cast<int32_t>(rng.below(static_cast<uint32_t>(words.vocab())))
                             : ids[rng.below(static_cast<uint32_t>(ids.size()))];
      mask->accept(id);
      tokens.push_back(id);
      if (rng.below(3) == 0) {
        const size_t back = rng.below(static_cast<uint32_t>(tokens.size() + 1));
        mask->rollback(static_cast<int64_t>(back));
        tokens.resize(tokens.size() - back);
      }
      const auto fresh = factory();
      for (const int32_t token : tokens) fresh->accept(token);
      ASSERT_EQ(allowed(*mask, words.vocab()), allowed(*fresh, words.vocab())) << schemas[s];
    }
  }
}

// Every token is tried, without the trie and without what is known of plain tokens.
TEST(JsonMask, TheTrieAllowsWhatTheBytesAllow) {
  const Words words(builtin_path());
  Rng rng(9);
  const std::vector<std::string> schemas = hundred_schemas();
  for (size_t s = 0; s < schemas.size(); s += 3) {
    const auto mask = words.masks.schema(schemas[s])();
    JsonMachine machine(std::make_shared<const JsonGrammar>(compile_json_schema(schemas[s])));
    for (int i = 0; i < 12; ++i) {
      const std::vector<int32_t> ids = allowed(*mask, words.vocab());
      std::vector<int32_t> slowly;
      for (int32_t id = 0; id < words.tokenizer->vocab_size(); ++id) {
        const std::string piece = words.tokenizer->is_special(id) ? "" : words.tokenizer->piece(id);
        size_t read = 0;
        while (read < piece.size() && machine.step(static_cast<uint8_t>(piece[read]))) ++read;
        machine.back(read);
        if (id == words.end ? machine.complete() : read == piece.size() && read > 0) slowly.push_back(id);
      }
      ASSERT_EQ(ids, slowly) << schemas[s] << " " << machine.text();
      const int32_t id = ids[rng.below(static_cast<uint32_t>(ids.size()))];
      if (id == words.end) break;
      mask->accept(id);
      for (const char c : words.tokenizer->piece(id)) ASSERT_TRUE(machine.step(static_cast<uint8_t>(c)));
    }
  }
}

TEST(JsonMask, OnlyTheEndComesBehindTheEnd) {
  const Words words(builtin_path());
  const auto mask = words.masks.schema(R"({"const": {}})")();
  for (const char* text : {"{", "}"}) {
    EXPECT_EQ(allowed(*mask, words.vocab()).size() > 0, true);
    mask->accept(words.tokenizer->encode(text, {.add_special = false})[0]);
  }
  EXPECT_EQ(allowed(*mask, words.vocab()), std::vector<int32_t>{words.end});
  mask->accept(words.end);
  EXPECT_EQ(allowed(*mask, words.vocab()), std::vector<int32_t>{words.end});
}

// They are no text, whatever they look like.
TEST(JsonMask, SpecialTokensNeverCome) {
  const auto tokenizer = load_tokenizer(FATHOM_TEST_DATA "/tokenizers/llama3_style.json");
  const auto vocab = static_cast<size_t>(tokenizer->vocab_size());
  const auto mask = JsonMasks(*tokenizer, {}).schema(R"({"type": "string"})")();
  mask->accept(tokenizer->encode("\"", {.add_special = false})[0]);
  int special = 0;
  const std::vector<int32_t> ids = allowed(*mask, vocab);
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    if (!tokenizer->is_special(id)) continue;
    ++special;
    EXPECT_FALSE(std::binary_search(ids.begin(), ids.end(), id)) << tokenizer->token(id);
  }
  EXPECT_GT(special, 1);
  EXPECT_GT(ids.size(), vocab / 2);
}

// Factories and masks need neither the maker nor the tokenizer any more.
TEST(JsonMask, MasksOutliveTheirMaker) {
  JsonMasks::Factory factory;
  size_t vocab = 0;
  {
    const Words words(builtin_path());
    factory = words.masks.any_object();
    vocab = words.vocab();
  }
  EXPECT_GT(allowed(*factory(), vocab).size(), 0u);
}

// A vocabulary of a few letters.
class FewLetters final : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view, EncodeOptions) const override { return {}; }
  std::string piece(int32_t id, bool) const override { return std::string(1, static_cast<char>('a' + id)); }
  std::string decode(const std::vector<int32_t>&, bool) const override { return ""; }
  int32_t vocab_size() const override { return 26; }
  int32_t id_of(std::string_view) const override { return -1; }
  std::string token(int32_t id) const override { return piece(id, false); }
  bool is_special(int32_t) const override { return false; }
  int32_t bos() const override { return -1; }
  int32_t eos() const override { return -1; }
  bool adds_bos() const override { return false; }
  bool adds_eos() const override { return false; }
  std::string kind() const override { return "letters"; }
};

TEST(JsonMask, AVocabularyThatCannotWriteJson) {
  try {
    const JsonMasks masks(FewLetters(), {});
    FAIL() << "was taken";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("a token for each ASCII character"), std::string::npos)
        << error.what();
  }
}

std::string alternatives(const std::function<OrderedJson(int)>& each) {
  OrderedJson list = OrderedJson::array();
  for (int i = 0; i < 32; ++i) list.push_back(each(i));
  return OrderedJson{{"anyOf", list}}.dump();
}

// An object of optional properties with these names.
std::string optional_names(const std::vector<std::string>& names) {
  OrderedJson schema{{"type", "object"}, {"properties", OrderedJson::object()}};
  for (const std::string& name : names) schema["properties"][name] = OrderedJson{{"const", 1}};
  return schema.dump();
}

// All names of two letters or digits: many tokens are the beginning of one.
std::string short_names() {
  const std::string letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  std::vector<std::string> names;
  for (const char first : letters) {
    for (const char second : letters) names.push_back({first, second});
  }
  return optional_names(names);
}

// Schemas under which many ways go through many tokens, or many names are compared with each: a mask's tries
// are counted, so that the bound holds on every machine. What is allowed is a part of what all ways allow,
// and never nothing.
TEST(JsonMask, TheWorstMaskIsBounded) {
  const std::string patterns = alternatives([](int i) {
    return OrderedJson{{"type", "string"}, {"pattern", "^[ !#-\\[\\]-~]{" + std::to_string(300 + i) + "}$"}};
  });
  const std::string lists =
      R"({"$ref": "#/$defs/a", "$defs": {"a": )" + alternatives([](int i) {
        return OrderedJson{{"type", "array"}, {"items", {{"$ref", "#/$defs/a"}}}, {"maxItems", 100 + i}};
      }) +
      "}}";
  const Words words(builtin_path());
  const JsonVocabulary vocabulary(*words.tokenizer, {words.end});
  const auto cases = {std::pair(patterns, "\"ab c"), std::pair(lists, "[["),
                      std::pair(short_names(), "{\"aa\": 1,\"z")};
  for (const auto& [schema, text] : cases) {
    JsonMachine machine(std::make_shared<const JsonGrammar>(compile_json_schema(schema)));
    for (const char* byte = text; *byte != 0; ++byte) {
      ASSERT_TRUE(machine.step(static_cast<uint8_t>(*byte)));
      const uint64_t before = machine.tries();
      const TokenBits bits = vocabulary.allowed(machine);
      EXPECT_LE(machine.tries() - before, vocabulary.most_tries() + vocabulary.trie_nodes() + 16'384) << byte;
      int64_t count = 0;
      for (int32_t id = 0; id < words.tokenizer->vocab_size(); ++id) {
        if (!bits.has(id)) continue;
        ++count;
        size_t read = 0;
        for (const char c : vocabulary.piece(id)) read += machine.step(static_cast<uint8_t>(c));
        EXPECT_EQ(read, vocabulary.piece(id).size()) << vocabulary.piece(id);
        machine.back(read);
      }
      EXPECT_GT(count, 0) << byte;
    }
    const auto mask = words.masks.schema(schema)();
    Walk(words, *mask, 3).run(40);
  }
}

// Names that begin alike and may not come any more are still looked at.
TEST(JsonMask, NamesThatAreLookedAtAreTries) {
  std::vector<std::string> names;
  for (int i = 1000; i < 2000; ++i) names.push_back("n" + std::to_string(i));
  JsonMachine machine(std::make_shared<const JsonGrammar>(compile_json_schema(optional_names(names))));
  for (const char c : std::string("{\"n1998\":1,\""))
    ASSERT_TRUE(machine.step(static_cast<uint8_t>(c))) << machine.text();
  const uint64_t before = machine.tries();
  ASSERT_TRUE(machine.step('n'));  // of the last one alone
  EXPECT_GE(machine.tries() - before, 999 / JsonMachine::kLooks);
  EXPECT_FALSE(machine.step('2'));
}

void print_times(const char* what, std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const double sum = std::accumulate(times.begin(), times.end(), 0.0);
  const size_t count = times.size();
  std::printf("%s: %zu tokens, mean %.3f ms, median %.3f, 90 %% below %.3f, 99 %% below %.3f, at most %.3f\n",
              what, count, sum / static_cast<double>(count), times[count / 2], times[count * 9 / 10],
              times[count * 99 / 100], times.back());
}

// Numbers for the notes: FATHOM_SMOLLM2 names the model whose vocabulary is measured.
TEST(JsonMask, TimeOfAToken) {
  const char* path = std::getenv("FATHOM_SMOLLM2");
  if (path == nullptr) GTEST_SKIP() << "skipped: FATHOM_SMOLLM2 names no file";
  const auto milliseconds = [] { return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC; };
  const double before = milliseconds();
  const Words words(path);
  std::printf("a vocabulary of %zu tokens: %.0f ms\n", words.vocab(), milliseconds() - before);
  const Words others(builtin_path());  // draws the texts, so that no mask of the first one is made before
  std::vector<float> logits(words.vocab());
  std::vector<double> compiling, times[2];
  for (const std::string& schema : hundred_schemas()) {
    const auto drawn = others.masks.schema(schema)();
    Walk walk(others, *drawn, 1);
    walk.run(100);
    const double begin = milliseconds();
    const auto factory = words.masks.schema(schema);
    compiling.push_back(milliseconds() - begin);
    for (std::vector<double>& list : times) {
      const auto mask = factory();
      for (const int32_t id :
           words.tokenizer->encode(walk.text, {.add_special = false, .parse_special = false})) {
        const double start = milliseconds();
        mask->forbid(logits);
        mask->accept(id);
        list.push_back(milliseconds() - start);
      }
    }
  }
  print_times("schemas compiled (not tokens)", compiling);
  print_times("masks, first time", times[0]);
  print_times("masks, again", times[1]);
}

}  // namespace
}  // namespace fathom
