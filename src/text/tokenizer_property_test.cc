// What holds for every text: bytes come back, long texts take no more than their share of time, threads do
// not matter.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "base/error.h"
#include "base/mapped_file.h"
#include "text/bpe.h"
#include "text/tiktoken.h"
#include "text/tokenizer.h"
#include "text/tokenizer_test_data.h"

namespace fathom {
namespace {

std::shared_ptr<const Tokenizer> load_small(const std::string& name) {
  if (!name.ends_with(".tiktoken")) return load_tokenizer(tokenizer_data(name));
  return tiktoken_tokenizer(read_text_file(tokenizer_data(name)), llama3_rules(), name);
}

// Random bytes: ASCII, whole characters, halves of characters and bytes that never occur in UTF-8.
std::string random_bytes(std::mt19937& rng) {
  static const std::string kUnits[] = {"a",
                                       " ",
                                       "  ",
                                       "the",
                                       "\n",
                                       "1",
                                       "'s",
                                       "\xC3\xA9",
                                       "\xE4\xB8\xAD",
                                       "\xF0\x9F\x98\x80",
                                       "\xE2\x96",
                                       "\xF0\x9F",
                                       "\xFF",
                                       "\xC0\x80",
                                       "\xED\xA0\x80",
                                       "\xF4\x8F\xBF\xBF",
                                       "\xF4\x90\x80\x80",
                                       "\xCC\x81"};
  std::string text;
  const size_t count = rng() % 24;
  for (size_t i = 0; i < count; ++i) {
    if (rng() % 3 == 0) {
      text += static_cast<char>(rng() % 256);
    } else {
      text += kUnits[rng() % std::size(kUnits)];
    }
  }
  return text;
}

// Tokenizers with a token for every byte and no normalizer that loses anything. SentencePiece writes a space
// as '▁', so a text with that character itself comes back with a space there; the ones marked so are not
// given it.
struct Lossless {
  const char* name;
  bool marks_spaces;
};

class RoundTrip : public testing::TestWithParam<Lossless> {};

TEST_P(RoundTrip, EveryByteString) {
  const auto tokenizer = load_small(GetParam().name);
  const auto check = [&](const std::string& text) {
    if (GetParam().marks_spaces && text.find("\u2581") != std::string::npos) return;
    const auto ids = tokenizer->encode(text, {.add_special = false, .parse_special = false});
    ASSERT_EQ(tokenizer->decode(ids, true), text) << printable(text);
    std::string pieces;
    for (const int32_t id : ids) pieces += tokenizer->piece(id, true);
    if (!GetParam().marks_spaces) {
      ASSERT_EQ(pieces, text) << printable(text);
    } else if (!text.empty()) {
      // piece() does not strip the space that was put in front.
      ASSERT_TRUE(pieces == text || pieces == " " + text) << printable(text) << " gave " << printable(pieces);
    }
  };
  for (int first = 0; first < 256; ++first) {
    check(std::string(1, static_cast<char>(first)));
    for (int second = 0; second < 256; second += 5)
      check({static_cast<char>(first), static_cast<char>(second)});
  }
  std::mt19937 rng(7);
  for (int i = 0; i < 2000; ++i) check(random_bytes(rng));
}

INSTANTIATE_TEST_SUITE_P(
    , RoundTrip,
    testing::Values(Lossless{"gpt2_style.json", false}, Lossless{"llama3_style.json", false},
                    Lossless{"dolma_style.json", false}, Lossless{"deepseek_style.json", false},
                    Lossless{"falcon_style.json", false}, Lossless{"split_behaviours.json", false},
                    Lossless{"gpt2_style.gguf", false}, Lossless{"gpt2_files", false},
                    Lossless{"ranks.tiktoken", false}, Lossless{"llama2_style.json", true},
                    Lossless{"gemma_style.json", true}, Lossless{"sp_bpe.model", true},
                    Lossless{"sp_unused.model", true}, Lossless{"sp_unigram_bytes.model", true},
                    Lossless{"sp_bpe.gguf", true}, Lossless{"llama2c.bin", true}),
    [](const auto& test) {
      std::string name = test.param.name;
      for (char& c : name) c = c == '.' ? '_' : c;
      return name;
    });

// Not timed: a quadratic step would take minutes here.
TEST(LongTexts, AMillionRepeatedCharacters) {
  for (const char* name :
       {"gpt2_style.json", "llama3_style.json", "falcon_style.json", "deepseek_style.json",
        "llama2_style.json", "unigram.json", "nfc_digits.json", "added_tokens.json", "sp_bpe.model",
        "sp_unigram.model", "ranks.tiktoken", "llama2c.bin", "sp_bpe.gguf"}) {
    const auto tokenizer = load_small(name);
    for (const std::string unit : {"a", " ", "1", "\n", "\xCC\x81\xCC\x96", "\xFF"}) {
      std::string text;
      const size_t size = unit == "a" || unit == " " ? 1000000 : 200000;
      while (text.size() < size) text += unit;
      text += "x";  // what follows the run must not make it tried again from each of its characters
      EXPECT_FALSE(tokenizer->encode(text, {.add_special = false}).empty())
          << name << " '" << printable(unit) << "'";
    }
  }
}

TEST(BpeMerging, ShortAndLongAgree) {
  std::mt19937 rng(11);
  for (int round = 0; round < 300; ++round) {
    // A random table over ids 0 … 5 and what they become.
    MergeTable table(64);
    for (int rank = 0; rank < 40; ++rank) {
      table.set(static_cast<int32_t>(rng() % (6 + rank)), static_cast<int32_t>(rng() % (6 + rank)),
                {static_cast<uint32_t>(rank), 6 + rank});
    }
    std::vector<BpeSymbol> symbols;
    for (uint32_t i = 0; i < 2 + rng() % (kShortBpe - 2); ++i)
      symbols.push_back({static_cast<int32_t>(rng() % 6), i, 1});
    auto by_scan = symbols, by_heap = symbols;
    const auto find = [&](const BpeSymbol& a, const BpeSymbol& b) { return table.find(a.id, b.id); };
    ModelScratch scratch;
    merge_short(by_scan, find);
    merge_long(by_heap, scratch, find);
    ASSERT_EQ(by_scan.size(), by_heap.size());
    for (size_t i = 0; i < by_scan.size(); ++i) {
      EXPECT_EQ(by_scan[i].id, by_heap[i].id);
      EXPECT_EQ(by_scan[i].begin, by_heap[i].begin);
      EXPECT_EQ(by_scan[i].size, by_heap[i].size);
    }
  }
}

// Words that a text repeats come from the cache; their ids must be those of the word alone.
TEST(PieceCaching, ChangesNothing) {
  for (const char* name : {"gpt2_style.json", "gemma_style.json", "sp_bpe.gguf", "llama2c.bin"}) {
    const auto tokenizer = load_small(name);
    const EncodeOptions plain{.add_special = false, .parse_special = false};
    std::string text = "x";
    std::vector<int32_t> want = tokenizer->encode(text, plain);
    const size_t start = want.size();
    for (const char* word :
         {" lighthousekeeping", " zzunknownzz", " lighthousekeeping", " zzunknownzz", " ships"}) {
      const auto alone = tokenizer->encode(std::string("x") + word, plain);
      want.insert(want.end(), alone.begin() + static_cast<std::ptrdiff_t>(start), alone.end());
      text += word;
    }
    EXPECT_EQ(tokenizer->encode(text, plain), want) << name;
  }
}

TEST(Threads, ShareOneTokenizer) {
  const auto tokenizer = load_small("gpt2_style.json");
  const std::string text = read_text_file(tokenizer_data("texts.json"));
  const auto want = tokenizer->encode(text);
  std::vector<std::thread> threads;
  threads.reserve(4);
  std::vector<int> same(4, 0);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const auto fresh = load_small("gpt2_style.json");
      same[t] = tokenizer->encode(text) == want && fresh->encode(text) == want;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(same, std::vector<int>(4, 1));
}

TEST(Tokens, WrittenFormsAndIds) {
  for (const char* name : {"gpt2_style.json", "llama2_style.json", "sp_bpe.model", "sp_bpe.gguf",
                           "ranks.tiktoken", "unigram.json"}) {
    const auto tokenizer = load_small(name);
    for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
      EXPECT_EQ(tokenizer->id_of(tokenizer->token(id)), id)
          << name << ": " << printable(tokenizer->token(id));
    }
    EXPECT_EQ(tokenizer->id_of("no such token, surely"), -1);
    EXPECT_THROW(tokenizer->decode({tokenizer->vocab_size()}), UserError);
    EXPECT_THROW(tokenizer->decode({-1}), UserError);
  }
}

TEST(Tokens, SpecialOnesAreHiddenAndParsedOnRequest) {
  const auto tokenizer = load_small("llama3_style.json");
  const std::string text = "a<|eot_id|>b";
  const auto parsed = tokenizer->encode(text);
  const auto plain = tokenizer->encode(text, {.add_special = false, .parse_special = false});
  EXPECT_TRUE(tokenizer->adds_bos());
  EXPECT_EQ(parsed.front(), tokenizer->id_of("<|begin_of_text|>"));
  EXPECT_EQ(tokenizer->decode(parsed), "ab");
  EXPECT_EQ(tokenizer->decode(parsed, true), "<|begin_of_text|>" + text);
  EXPECT_EQ(tokenizer->decode(plain), text);
  EXPECT_EQ(tokenizer->piece(parsed.front()), "");
  EXPECT_TRUE(tokenizer->is_special(parsed.front()));
}

}  // namespace
}  // namespace fathom
