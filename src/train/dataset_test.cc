#include "train/dataset.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <map>
#include <set>

#include "skip/method.h"
#include "support/test_paths.h"
#include "tensor/arena.h"
#include "train/encode_document.h"
#include "train/permutation.h"
#include "train/prefetch.h"
#include "train/shard_cache.h"
#include "train/temporary_folder_test.h"
#include "train/train_part.h"

namespace fathom {
namespace {

std::shared_ptr<const TokenShard> shard_of(const std::string& path,
                                           const std::vector<std::vector<uint32_t>>& documents) {
  TokenShardWriter writer(path);
  for (const auto& document : documents) writer.add(document);
  writer.commit();
  return TokenShard::open(path);
}

// Documents of the given lengths whose tokens count on from `first`.
std::vector<std::vector<uint32_t>> counting(std::initializer_list<int> lengths, uint32_t first = 0) {
  std::vector<std::vector<uint32_t>> documents;
  for (int length : lengths) {
    documents.emplace_back();
    for (int i = 0; i < length; ++i) documents.back().push_back(first++);
  }
  return documents;
}

TEST(Permutation, EveryElementOnceAndInAnotherOrder) {
  for (int64_t n : {1, 2, 3, 5, 64, 65, 1000}) {
    const Permutation order(n, 7, {0, 0}), next(n, 7, {0, 1}), other(n, 8, {0, 0});
    std::set<int64_t> seen;
    int64_t fixed = 0, as_next = 0, as_other = 0;
    for (int64_t i = 0; i < n; ++i) {
      seen.insert(order(i));
      fixed += order(i) == i, as_next += order(i) == next(i), as_other += order(i) == other(i);
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), n);
    EXPECT_GE(*seen.begin(), 0);
    EXPECT_LT(*seen.rbegin(), n);
    if (n < 64) continue;
    EXPECT_LT(fixed, 10);
    EXPECT_LT(as_next, 10);
    EXPECT_LT(as_other, 10);
  }
}

TEST(TokenShard, RoundTripAndDamage) {
  const TemporaryFolder folder;
  const std::string path = folder.at("a.tokens");
  const auto shard = shard_of(path, {{1, 2 | kNotLearned, 3}, {}, {9, 4}});
  EXPECT_EQ(shard->documents(), 2);
  EXPECT_EQ(shard->ids(), 10);
  EXPECT_TRUE(shard->masked());
  EXPECT_EQ(shard->begin_of(1), 3);
  EXPECT_EQ(shard->document_of(2), 0);
  EXPECT_EQ(shard->document_of(3), 1);

  const std::string good = file_text(path);
  std::vector<uint64_t> memory(good.size() / 8 + 2);
  const auto parse = [&](const std::string& bytes) {
    std::memcpy(memory.data(), bytes.data(), bytes.size());
    return error_of([&] {
      const auto parsed =
          TokenShard::parse(std::as_bytes(std::span(memory)).first(bytes.size()), nullptr, "x");
      for (int64_t d = 0; d < parsed->documents(); ++d) {
        for (int64_t i = parsed->begin_of(d); i < parsed->end_of(d); ++i)
          EXPECT_GE(token_id(parsed->tokens()[static_cast<size_t>(i)]), 0);
      }
    });
  };
  EXPECT_EQ(parse(good), "");
  for (size_t size = 0; size < good.size(); ++size) EXPECT_NE(parse(good.substr(0, size)), "") << size;
  EXPECT_NE(parse(good + std::string(8, '\0')), "");
  for (size_t i = 0; i < good.size(); ++i) {  // whichever bit it is
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ 1 << bit);
      EXPECT_NE(parse(bad), "") << i;
    }
  }
  for (char end : {'\0', '\5'}) {  // an empty document, at either side
    std::string bad = good;
    bad[good.size() - 64] = end;
    EXPECT_EQ(parse(bad), "x: not a file of tokens: document ends out of order");
  }
  std::string other = good;
  other[8] = 3;
  EXPECT_EQ(parse(other), "x: not a file of tokens: version 3, expected 2");
}

TEST(ShardCache, MadeOncePerContentTokenizerAndOptions) {
  const TemporaryFolder folder;
  Context ctx({.threads = 2});
  const auto tokenizer = load_tokenizer(std::string(FATHOM_TEST_DATA) + "/tokenizers/gpt2_style.gguf");
  const auto other = load_tokenizer(std::string(FATHOM_TEST_DATA) + "/tokenizers/llama3_style.json");
  const std::string source = folder.write("a.txt", "first text\n<|endoftext|>\nsecond text\n");
  const ShardCacheOptions options{folder.at("cache"), {}};
  const auto files = [&] {
    std::map<std::string, std::filesystem::file_time_type> all;
    for (const auto& entry : std::filesystem::directory_iterator(options.folder))
      all[entry.path().string()] = entry.last_write_time();
    return all;
  };
  const auto made = [&](const Tokenizer& with) {
    return tokenized_source(ctx, source, with, 100000, options);
  };
  const auto shard = made(*tokenizer);
  EXPECT_EQ(shard->documents(), 2);
  const auto first = files();
  made(*tokenizer);
  EXPECT_EQ(files(), first);
  made(*other);
  EXPECT_EQ(files().size(), 2u);

  // A damaged file is made again.
  const std::string name = first.begin()->first, good = file_text(name);
  std::ofstream(name, std::ios::binary) << good.substr(0, good.size() - 1);
  EXPECT_EQ(made(*tokenizer)->documents(), 2);
  EXPECT_EQ(file_text(name), good);
  std::string flipped = good;
  flipped[20] = static_cast<char>(flipped[20] ^ 1);  // a token
  std::ofstream(name, std::ios::binary) << flipped;
  EXPECT_EQ(made(*tokenizer)->checksum(), shard->checksum());
  EXPECT_EQ(file_text(name), good);

  folder.write("a.txt", "other text\n");
  EXPECT_EQ(made(*tokenizer)->documents(), 1);
  EXPECT_EQ(
      error_of([&] { tokenized_source(ctx, source, *tokenizer, 100, options); }),
      source +
          ": the tokenizer gives the id 311, and the model's vocabulary is 100: they do not belong together");
  folder.write("a.txt", " \n<|endoftext|>\n");
  EXPECT_EQ(error_of([&] { made(*tokenizer); }), source + ": expected text to train on, it has none");
}

TEST(ShardCache, CanBeStoppedAndLeavesNothing) {
  const TemporaryFolder folder;
  Context ctx({.threads = 2});
  const auto tokenizer = load_tokenizer(std::string(FATHOM_TEST_DATA) + "/tokenizers/gpt2_style.gguf");
  const std::string source = folder.write("a.txt", "first text\n<|endoftext|>\nsecond text\n");
  const std::atomic<bool> stop{true};
  const ShardCacheOptions options{folder.at("cache"), {}, &stop};
  EXPECT_THROW(tokenized_source(ctx, source, *tokenizer, 100000, options), PrepareCancelled);
  EXPECT_TRUE(std::filesystem::is_empty(options.folder));
}

// Every token of an epoch is a row once; a row's target is the next token of its document.
TEST(Dataset, PlainTextIsCutWhereTheSampleIsFull) {
  const TemporaryFolder folder;
  const auto shard = shard_of(folder.at("a"), counting({3, 9, 1, 4, 8}));  // 25 tokens
  const Dataset data({{"a", shard, 0}}, {.context = 4, .seed = 3, .vocab = 25});
  EXPECT_EQ(data.samples(), 7);
  EXPECT_EQ(data.tokens(), 25);
  const TrainBatch batch = data.batch(0, 7, 0);
  ASSERT_EQ(batch.rows(), 25);
  const std::set<int32_t> ends{2, 11, 12, 16, 24}, begins{0, 3, 12, 13, 17};
  std::set<int32_t> seen;
  std::map<int32_t, int32_t> next_position;
  for (size_t i = 0; i < 25; ++i) {
    const int32_t token = batch.tokens[i];
    seen.insert(token);
    EXPECT_EQ(batch.weights[i], ends.count(token) ? 0.0f : 1.0f) << token;
    if (!ends.count(token)) {
      EXPECT_EQ(batch.targets[i], token + 1);
    }
    EXPECT_GE(batch.targets[i], 0);
    EXPECT_LT(batch.targets[i], 25);
    const bool starts = i == 0 || batch.sequence[i] != batch.sequence[i - 1];
    EXPECT_EQ(batch.positions[i], next_position[batch.sequence[i]]++);
    EXPECT_TRUE(starts || !begins.count(token)) << token;
    EXPECT_TRUE(starts || token == batch.tokens[i - 1] + 1);
  }
  EXPECT_EQ(seen.size(), 25u);
  EXPECT_EQ(batch.sequences, batch.sequence.back() + 1);
  EXPECT_EQ(batch.sequence_keys.size(), static_cast<size_t>(batch.sequences));
  EXPECT_EQ(std::set<int32_t>(batch.sequence_keys.begin(), batch.sequence_keys.end()).size(),
            batch.sequence_keys.size());
  EXPECT_EQ(batch.weight_sum, 20);
}

TEST(Dataset, DocumentsWithAnswersStayWhole) {
  const TemporaryFolder folder;
  auto documents = counting({5, 4, 3, 11, 2});
  for (auto& document : documents) document[1] |= kNotLearned;
  const auto shard = shard_of(folder.at("a"), documents);
  const Dataset data({{"a", shard, 0}}, {.context = 8, .seed = 3, .shuffle = false, .vocab = 25});
  // 5 | 4 3 | 8 of 11, 3 + 2
  ASSERT_EQ(data.samples(), 4);
  EXPECT_EQ(data.batch(0, 1, 0).rows(), 5);
  EXPECT_EQ(data.batch(1, 1, 0).rows(), 7);
  EXPECT_EQ(data.batch(1, 1, 0).sequences, 2);
  EXPECT_EQ(data.batch(2, 1, 0).rows(), 8);
  EXPECT_EQ(data.batch(3, 1, 0).tokens, (std::vector<int32_t>{20, 21, 22, 23, 24}));
  EXPECT_EQ(data.batch(0, 1, 0).weights, (std::vector<float>{0, 1, 1, 1, 0}));
}

TEST(Dataset, AnyPlaceInTheStreamIsAsWhenReadFromTheStart) {
  const TemporaryFolder folder;
  const auto shard = shard_of(folder.at("a"), counting({30, 20, 50}));
  const Dataset data({{"a", shard, 0}}, {.context = 8, .seed = 1, .vocab = 100});
  const TrainBatch all = data.batch(0, 40, 0);
  std::vector<int32_t> pieces;
  for (int64_t i = 0; i < 40; i += 5) {
    const TrainBatch part = data.batch(i, 5, i);
    pieces.insert(pieces.end(), part.tokens.begin(), part.tokens.end());
  }
  EXPECT_EQ(pieces, all.tokens);
  EXPECT_EQ(data.batch(3, 2, 1).sequence_keys[0], 8);  // place 1 in the step
  // Another epoch and another seed have other orders.
  EXPECT_NE(data.batch(0, 13, 0).tokens, data.batch(13, 13, 0).tokens);
  const Dataset other({{"a", shard, 0}}, {.context = 8, .seed = 2, .vocab = 100});
  EXPECT_NE(data.batch(0, 13, 0).tokens, other.batch(0, 13, 0).tokens);
}

TEST(Dataset, SourcesAreMixedByWeightInTokens) {
  const TemporaryFolder folder;
  const auto a = shard_of(folder.at("a"), counting({400})),
             b = shard_of(folder.at("b"), counting({100, 100}, 1000));
  auto answers = counting({6, 6, 6, 6, 6, 6, 6, 6}, 2000);  // samples of 6, not 8
  for (auto& document : answers) document[1] |= kNotLearned;
  const auto c = shard_of(folder.at("c"), answers);
  const Dataset data({{"a", a, 1}, {"b", b, 2}, {"c", c, 5}}, {.context = 8, .seed = 1, .vocab = 3000});
  const auto shares = [&](int64_t first, int64_t count) {
    const TrainBatch batch = data.batch(first, count, 0);
    std::vector<double> share(3);
    for (int32_t token : batch.tokens)
      share[static_cast<size_t>(token / 1000)] += 1 / static_cast<double>(batch.rows());
    return share;
  };
  for (int64_t first : {0, 1000}) {
    const std::vector<double> share = shares(first, 800);
    EXPECT_NEAR(share[0], 1 / 8.0, 0.005);
    EXPECT_NEAR(share[1], 2 / 8.0, 0.005);
    EXPECT_NEAR(share[2], 5 / 8.0, 0.005);
  }
  // Without weights every source is read as often as the others.
  const Dataset natural({{"a", a, 0}, {"b", b, 0}}, {.context = 8, .seed = 1, .vocab = 3000});
  std::set<int32_t> seen;
  for (int32_t token : natural.batch(0, natural.samples(), 0).tokens) seen.insert(token);
  EXPECT_EQ(seen.size(), 600u);
  EXPECT_EQ(error_of([&] {
              Dataset({{"a", a, 1}, {"b", b, 0}}, {.context = 8, .vocab = 3000});
            }),
            "b: either every data source has a weight or none has");
}

TEST(Dataset, ValidationIsTheLastDocumentsAndNoOthers) {
  const TemporaryFolder folder;
  const auto shard = shard_of(folder.at("a"), counting({10, 10, 10, 10, 10, 10, 10, 10, 10, 10}));
  DatasetOptions options{.context = 8, .seed = 1, .vocab = 100, .validation_share = 0.15};
  const Dataset train({{"a", shard, 0}}, options);
  options.validation = true;
  const Dataset validation({{"a", shard, 0}}, options);
  EXPECT_EQ(train.tokens(), 80);
  EXPECT_EQ(validation.tokens(), 20);
  for (int32_t token : train.batch(0, 50, 0).tokens) EXPECT_LT(token, 80);
  for (int32_t token : validation.batch(0, 50, 0).tokens) EXPECT_GE(token, 80);
  const auto single = shard_of(folder.at("b"), counting({10}));
  EXPECT_EQ(error_of([&] {
              Dataset({{"b", single, 0}}, options);
            }),
            "expected data to validate on: sources of one document cannot be split, give validation data of "
            "its own");
  EXPECT_EQ(error_of([&] { Dataset({}, options); }), "expected data to train on, got no source");
}

TEST(Dataset, AnIdOutsideTheVocabularyIsRefused) {
  const TemporaryFolder folder;
  const auto shard = shard_of(folder.at("a"), counting({10}));
  const Dataset data({{"some.txt", shard, 0}}, {.context = 10, .vocab = 5});
  EXPECT_EQ(error_of([&] { data.batch(0, 1, 0); }), "some.txt: token 5 is outside the vocabulary of 5");
  Prefetcher ahead(data, 0, {1, 1});
  EXPECT_EQ(error_of([&] { ahead.next(); }), "some.txt: token 5 is outside the vocabulary of 5");
}

std::vector<int32_t> ints(const Tensor& t) {
  return {t.data<int32_t>(), t.data<int32_t>() + t.numel()};
}

TEST(Prefetch, GivesTheStepsInOrder) {
  const TemporaryFolder folder;
  const auto shard = shard_of(folder.at("a"), counting({100}));
  const Dataset data({{"a", shard, 0}}, {.context = 8, .seed = 1, .vocab = 100});
  const StepShape shape{2, 3};
  Prefetcher ahead(data, 12, shape);
  for (int64_t i = 0; i < 10; ++i) {
    const TrainStep step = ahead.next(), same = make_step(data, 12 + 6 * i, shape);
    EXPECT_EQ(step.first_sample, same.first_sample);
    ASSERT_EQ(step.parts.size(), 3u);
    EXPECT_EQ(step.weight_sum, same.weight_sum);
    for (size_t part = 0; part < 3; ++part) EXPECT_EQ(step.parts[part].tokens, same.parts[part].tokens);
    EXPECT_EQ(step.parts[1].sequence_keys[0], 16);
  }
}

TEST(Prefetch, StagesWhatGoesToTheDevice) {
  const TemporaryFolder folder;
  const auto shard = shard_of(folder.at("a"), counting({40, 30, 7}));
  const Dataset data({{"a", shard, 0}}, {.context = 16, .seed = 1, .vocab = 100});
  Context ctx({.threads = 1});
  const ArenaScope arena(ctx);
  Prefetcher ahead(data, 0, {3, 2});
  for (int i = 0; i < 8; ++i) {
    const TrainStep step = ahead.next();
    ASSERT_EQ(step.staged.size(), 2u);
    double share = 0;
    for (size_t p = 0; p < 2; ++p) {
      const TrainBatch& part = step.parts[p];
      const PartInput input = part_input(ctx, step.staged[p]);
      const Batch batch = make_batch(ctx, rows_of(part));
      EXPECT_EQ(ints(input.batch.tokens), part.tokens);
      EXPECT_EQ(ints(input.batch.positions), part.positions);
      EXPECT_EQ(ints(input.batch.sequence), part.sequence);
      EXPECT_EQ(ints(input.batch.keys), ints(batch.keys));
      EXPECT_EQ(input.batch.sequences, part.sequences);
      std::vector<int32_t> rows, targets;
      std::vector<float> weights;
      for (size_t row = 0; row < part.tokens.size(); ++row) {
        if (part.weights[row] <= 0) continue;
        rows.push_back(static_cast<int32_t>(row));
        targets.push_back(part.targets[row]);
        weights.push_back(static_cast<float>(static_cast<double>(part.weights[row]) / step.weight_sum));
      }
      if (!input.batch.logit_rows.is_all()) {
        EXPECT_EQ(ints(input.batch.logit_rows.ids()), rows);
      }
      EXPECT_EQ(ints(input.targets), targets);
      const float* got = input.weights.data<float>();
      EXPECT_EQ(std::vector<float>(got, got + input.weights.numel()), weights);
      share += step.staged[p].share;
    }
    EXPECT_NEAR(share, 1, 1e-12);
  }
}

TEST(Prefetch, StagingMemoryIsUsedAgain) {
  StagingRooms rooms(Device::kCpu);
  std::shared_ptr<int32_t> first = rooms.take(100), second = rooms.take(100);
  EXPECT_NE(first.get(), second.get());
  const int32_t* place = first.get();
  first.reset();
  first = rooms.take(128);  // fits: blocks have a power of two
  EXPECT_EQ(first.get(), place);
  first.reset();
  first = rooms.take(5000);
  first.get()[4999] = 1;
  std::shared_ptr<int32_t> outlives = StagingRooms(Device::kCpu).take(10);
  outlives.get()[9] = 1;
}

}  // namespace
}  // namespace fathom
