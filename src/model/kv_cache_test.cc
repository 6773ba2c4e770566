#include "model/kv_cache.h"

#include <gtest/gtest.h>

#include "model/mirrored_cache_test.h"

namespace fathom {
namespace {

class CacheTypes : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(All, CacheTypes,
                         testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0),
                         [](const auto& type) { return name_of(type.param); });

// Whatever happens to the sequences, in any order: every list is what it must be, in a pool that is often too
// small; and nothing leaks.
TEST_P(CacheTypes, AnyHistoryHoldsWhatItMust) {
  for (const uint64_t seed : {1u, 2u, 3u}) {
    Mirrored m(GetParam(), 30, seed);
    int forks = 0;
    for (int step = 0; step < 150; ++step) {
      const int32_t s = m.any(kSequences), other = m.any(kSequences);
      switch (m.any(6)) {
        case 0:
          m.truncate(s, m.any(3) == 0 ? 0 : m.any(m.cache.rows(s) + 1));
          break;
        case 1:
          if (s == other) break;
          m.truncate(other, 0);
          m.fork(s, other, m.any(m.cache.rows(s) + 1));
          forks += m.cache.rows(other) > 0;
          break;
        case 2:
          m.feed_again(s, m.any(kLayers), m.any(m.cache.rows(s) + 1));
          break;
        default: {
          std::vector<int32_t> sequences{s};
          if (other != s) sequences.push_back(other);
          const int64_t count = 1 + m.any(m.any(4) == 0 ? 90 : 12);
          if (m.cache.rows(s) + count > 300 || m.cache.rows(other) + count > 300) break;
          m.feed(sequences, count);
          if (m.any(2) == 0) m.settle();
        }
      }
      m.check();
      if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_GT(m.refused, 0);
    EXPECT_GT(forks, 3);
    m.settle();
    EXPECT_LE(m.pages_held(), m.pages_unshared());
    for (int32_t s = 0; s < kSequences; ++s) m.truncate(s, 0);
    EXPECT_EQ(m.cache.bytes_held(), 0);
    EXPECT_EQ(m.cache.bytes_dense(), 0);
  }
}

// Forks share every page until one of them writes to it.
TEST_P(CacheTypes, AForkCostsWhatItAddsOnly) {
  Mirrored m(GetParam(), 200, 7);
  m.rules = {Rule::kAll, Rule::kAll, Rule::kAll, Rule::kAll};
  m.feed({0}, 100);
  const int64_t alone = m.pages_held();
  EXPECT_EQ(alone, 2 * kLayers);
  m.fork(0, 1, 100);
  m.fork(0, 2, 70);
  m.fork(2, 3, 64);  // whole pages: nothing to copy
  EXPECT_EQ(m.pages_held(), alone);
  EXPECT_EQ(m.cache.bytes_dense(), 7 * kLayers * KvCache::kPage * m.cache.bytes_per_entry());
  for (const int32_t s : {0, 1, 2, 3}) m.feed({s}, 3);
  m.check();
  // Three wrote to the second page: the last of them had it for itself by then.
  EXPECT_EQ(m.pages_held(), alone + 3 * kLayers);
  m.truncate(0, 0);
  m.check();
  m.feed({0, 1, 2, 3}, 80);
  m.check();
  for (int32_t s = 0; s < kSequences; ++s) m.truncate(s, 0);
  EXPECT_EQ(m.cache.bytes_held(), 0);
}

// Hidden rows take no slot, nor do shared ones; what was reserved for them goes back.
TEST(Cache, HoldsOnlyEntriesThatExist) {
  for (const Rule rule : {Rule::kHide, Rule::kShare}) {
    Mirrored m(DType::kF16, 0, 9);
    m.rules = {Rule::kAll, rule, rule, rule};
    m.feed({0, 3}, 250);
    EXPECT_EQ(m.cache.bytes_held(), m.cache.bytes_dense());
    m.settle();
    EXPECT_EQ(m.pages_held(), m.pages_unshared());
    EXPECT_LT(m.cache.bytes_held(), 0.75 * static_cast<double>(m.cache.bytes_dense()));
    m.feed({0, 3}, 20);  // taken again where they are needed
    m.settle();
    m.check();
    EXPECT_EQ(m.pages_held(), m.pages_unshared());
  }
}

// A row that spoke for its sequence and left nothing in a layer: the layer is emptied. Later rows find room.
TEST(Cache, ASkippedLayerIsEmptied) {
  Mirrored m(DType::kF16, 0, 11);
  m.rules = {Rule::kAll, Rule::kAll, Rule::kAll, Rule::kAll};
  m.feed({0, 1}, 65);
  m.cache.truncate_layer(m.ctx, 2, 0, 64);  // as if row 64 had skipped it
  m.rules = {Rule::kAll, Rule::kAll, Rule::kHide, Rule::kAll};
  m.lists[0][2].pop_back();
  m.feed({1}, 8);
  for (const int32_t s : {0, 1}) m.cache.settle(m.ctx, s, 64);
  m.lists[0][2].clear();
  m.check();
  EXPECT_EQ(m.pages_held(), 7 * 2);
  m.cache.settle(m.ctx, 1, 73);  // a row that is still to come
  m.feed({0, 1}, 70);
  m.check();
}

TEST(Cache, ABoundedPoolRefusesAndStaysUsable) {
  Mirrored m(DType::kF32, 3 * kLayers, 5);
  m.rules = {Rule::kAll, Rule::kAll, Rule::kAll, Rule::kAll};
  m.feed({0}, 60);
  m.feed({1}, 100);
  EXPECT_TRUE(m.cache.fits(0, 4));
  EXPECT_FALSE(m.cache.fits(0, 5));
  EXPECT_FALSE(m.cache.fits(0, 241));  // nor in the context
  try {
    m.cache.reserve(m.ctx, 2, 7);
    FAIL();
  } catch (const CacheFull& error) {
    EXPECT_STREQ(
        error.what(),
        "the cache is full: 12 of its 12 pages are held, and 7 more tokens of sequence 2 may need 4");
  }
  m.feed({0, 1}, 4);
  m.check();
  m.truncate(1, 64);
  m.fork(0, 2, 20);
  EXPECT_TRUE(m.cache.fits(2, 44));  // its part of the shared page is copied
  EXPECT_FALSE(m.cache.fits(2, 45));
  m.feed({2}, 44);
  m.check();
  EXPECT_EQ(m.refused, 0);
  EXPECT_THROW(KvCache(m.ctx, tiny(), {.pages = 3}), UserError);
}

TEST(Cache, LayersAreCutFromTheTopWhereTheyShare) {
  Mirrored m(DType::kF32, 0, 6);
  m.rules = {Rule::kAll, Rule::kShare, Rule::kShare, Rule::kAll};
  m.feed({0}, 30);
  EXPECT_THROW(m.cache.truncate_layer(m.ctx, 0, 0, 20), UserError);
  m.check();
  m.feed_again(0, 1, 20);
  m.check();
  EXPECT_THROW(m.cache.fork(m.ctx, 1, 0, 0), UserError);  // not empty
  EXPECT_THROW(m.cache.truncate(m.ctx, kSequences, 0), UserError);
  EXPECT_THROW(m.cache.truncate_layer(m.ctx, kLayers, 0, 0), UserError);
}

}  // namespace
}  // namespace fathom
