// Layers with a window keep no more than it shows, and nothing that is computed changes.
#include <gtest/gtest.h>

#include "infer/sequences.h"
#include "model/load.h"
#include "model/transformer.h"
#include "support/test_paths.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

constexpr int64_t kTokens = 700, kChunk = KvCache::kPage;

std::vector<int32_t> some_tokens(const Model& model, int64_t count, int32_t step) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<int32_t>((7 + i * i * step + i) % model.config.vocab));
  return ids;
}

std::vector<float> host(Context& ctx, const Tensor& logits) {
  std::vector<float> values(static_cast<size_t>(logits.numel()));
  copy_to_host(ctx, logits, values);
  return values;
}

struct Windowed {
  Context ctx{{.threads = 2}};
  Model model;
  DensePolicy dense;
  Sequences sequences;

  explicit Windowed(const char* name, int64_t pass_rows = kChunk)
      : model(load_model(ctx, std::string(FATHOM_TEST_DATA) + "/models/" + name)),
        sequences(ctx, model, dense, {{.sequences = 2, .context = kTokens, .pass_rows = pass_rows}, {}}) {}

  Feeder& feeder() { return sequences.feeder(); }
  // The logits of all tokens, fed in passes of `chunk`.
  std::vector<float> feed(int32_t sequence, std::span<const int32_t> ids, int64_t chunk) {
    std::vector<float> all;
    for (size_t at = 0; at < ids.size(); at += static_cast<size_t>(chunk)) {
      const ArenaScope scope(ctx);
      const auto part = ids.subspan(at, std::min(static_cast<size_t>(chunk), ids.size() - at));
      const std::vector<float> logits = host(ctx, feeder().feed(sequence, part, LogitsFor::kAll));
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  }
};

// Two sequences in turns, so that pages go from one to the other, against one pass over everything, in which
// nothing can go.
TEST(WindowCache, LogitsStayAndMemoryDoesNotGrow) {
  for (const char* name : {"mistral", "gemma3", "gemma2"}) {
    SCOPED_TRACE(name);
    Windowed whole(name, 0), cut(name);
    int64_t windows = 0;
    for (const int32_t window : cut.model.config.windows) windows += window > 0;
    ASSERT_GT(windows, 0);
    const std::vector<int32_t> a = some_tokens(cut.model, kTokens, 3), b = some_tokens(cut.model, kTokens, 5);
    const std::vector<float> expected_a = whole.feed(0, a, kTokens), expected_b = whole.feed(1, b, kTokens);
    std::vector<float> got_a, got_b;
    const auto feed = [&](int32_t sequence, const std::vector<int32_t>& ids, int64_t begin, int64_t count,
                          std::vector<float>& got) {
      const int64_t end = std::min(begin + count, kTokens);
      if (begin >= end) return;
      const auto part = std::span(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
      const std::vector<float> logits = cut.feed(sequence, part, kChunk);
      got.insert(got.end(), logits.begin(), logits.end());
    };
    // The first fills a page with each of its passes, just when the second has begun one: what that still
    // sees must not be in the page which the first has got.
    for (int64_t at = 0; at < kTokens; ++at) {
      feed(1, b, at, 1, got_b);
      if (at % kChunk == 4) feed(0, a, at - 4, kChunk, got_a);
    }
    EXPECT_EQ(got_a, expected_a);
    EXPECT_EQ(got_b, expected_b);
    const KvCache& cache = cut.feeder().cache();
    const int64_t layers = cache.layers(), one = KvCache::kPage * cache.bytes_per_entry();
    EXPECT_LE(cache.bytes_held(), 2 * one * (KvCache::pages_for(kTokens) * (layers - windows) + 5 * windows));
    EXPECT_LT(cache.pages(), whole.feeder().cache().pages());
    EXPECT_EQ(cache.bytes_held(), cache.bytes_dense());
    EXPECT_EQ(cache.longest(), kTokens);
    cut.feeder().truncate(0, 0);
    cut.feeder().truncate(1, 0);
    EXPECT_EQ(cache.bytes_held(), 0);
  }
}

// What was given back cannot be gone back to: the sequence says so, and is fed again.
TEST(WindowCache, GoesBackAsFarAsItHolds) {
  Windowed rig("mistral");
  const std::vector<int32_t> ids = some_tokens(rig.model, kTokens, 3);
  const auto part = [&](int64_t begin, int64_t end) {
    return std::span(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  };
  rig.feed(0, part(0, 600), kChunk);
  EXPECT_EQ(rig.feeder().fork(0, 1, 300), 0);
  EXPECT_EQ(rig.feeder().cache().rows(1), 0);
  EXPECT_EQ(rig.feeder().fork(0, 1, 590), 590);
  EXPECT_EQ(rig.feeder().truncate(0, 580), 580);
  const std::vector<float> again = rig.feed(0, part(580, 620), 8), forked = rig.feed(1, part(590, 620), 8);
  const size_t vocab = static_cast<size_t>(rig.model.config.vocab);
  EXPECT_EQ(std::vector<float>(again.begin() + static_cast<ptrdiff_t>(10 * vocab), again.end()), forked);
  EXPECT_EQ(rig.feeder().truncate(0, 300), 0);
  EXPECT_EQ(rig.feeder().cache().rows(0), 0);
  const std::vector<float> fresh = rig.feed(0, part(0, 620), kChunk);
  EXPECT_TRUE(std::equal(forked.rbegin(), forked.rend(), fresh.rbegin()));
}

// Where passes are not settled one by one, as on a GPU, a fork settles: what that gives back is not forked.
TEST(WindowCache, AForkSharesNoPageThatGoesBack) {
  Windowed rig("mistral");
  rig.feeder().settle_every_pass(false);
  const std::vector<int32_t> ids = some_tokens(rig.model, kTokens, 3);
  const auto first = std::span(ids).first(320);
  const std::vector<float> expected = rig.feed(0, first, kChunk);
  EXPECT_TRUE(rig.feeder().cache().keeps(0, 160));
  EXPECT_EQ(rig.feeder().fork(0, 1, 160), 0);
  EXPECT_EQ(rig.feeder().cache().rows(1), 0);
  rig.feeder().cache().fork(rig.ctx, 0, 1, 0);  // an empty fork has lost nothing
  EXPECT_EQ(rig.feed(1, first, kChunk), expected);
}

}  // namespace
}  // namespace fathom
