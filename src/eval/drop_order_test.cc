#include "eval/drop_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "infer/story_model_test.h"
#include "train/temporary_folder_test.h"

namespace fathom {
namespace {

struct Rig {
  StoryModel story;
  TemporaryFolder folder;
  std::vector<std::vector<int32_t>> sequences = text(700);

  // Tokens in sequences of `length`.
  std::vector<std::vector<int32_t>> text(size_t count, size_t length = 512) const {
    std::vector<int32_t> ids;
    while (ids.size() < count) {
      for (const int32_t id :
           story.model.tokenizer->encode("Once upon a time, Tom had a big red dog. It ran "))
        ids.push_back(id);
    }
    std::vector<std::vector<int32_t>> cut;
    for (size_t begin = 0; begin < count; begin += length)
      cut.emplace_back(ids.begin() + static_cast<ptrdiff_t>(begin),
                       ids.begin() + static_cast<ptrdiff_t>(std::min(begin + length, count)));
    return cut;
  }
  DropOrder order(const DropOrderOptions& options = {}) {
    return *drop_order(story.ctx, story.model, sequences, options, folder.path());
  }
};

TEST(DropOrder, IsMeasuredOnEveryTokenOnce) {
  Rig rig;
  const auto madds = [&] { return rig.story.ctx.counters().total().madds; };
  const uint64_t before = madds();
  const DropOrder first = rig.order();
  const uint64_t all = madds() - before;
  EXPECT_FALSE(first.kept);
  std::vector<int32_t> sorted = first.units;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  // Twice the text is twice the work; all of it counts, not the first sequence alone.
  rig.sequences = rig.text(1400);
  const uint64_t then = madds();
  rig.order();
  EXPECT_GT(madds() - then, all * 19 / 10);
}

TEST(DropOrder, IsKeptForTheSameTextModelAndSearch) {
  Rig rig;
  const DropOrder first = rig.order();
  const uint64_t before = rig.story.ctx.counters().total().madds;
  const DropOrder again = rig.order();
  EXPECT_TRUE(again.kept);
  EXPECT_EQ(again.units, first.units);
  EXPECT_EQ(rig.story.ctx.counters().total().madds, before) << "nothing is measured";
  EXPECT_FALSE(rig.order({.search = OrderSearch::kGreedily}).kept);
  EXPECT_TRUE(rig.order({.search = OrderSearch::kGreedily}).kept);
  EXPECT_FALSE(rig.order({.search = OrderSearch::kGreedily, .until = 0.4}).kept);
  EXPECT_EQ(rig.order().units, first.units);
  rig.sequences[1][138] ^= 1;
  EXPECT_FALSE(rig.order().kept) << "another text";
  EXPECT_TRUE(rig.order().kept);
  Tensor& up = rig.story.model.weights.blocks[2].up;
  Tensor changed = Tensor::owned(Device::kCpu, DType::kF32, up.shape());
  std::memcpy(changed.raw(), up.raw(), static_cast<size_t>(up.nbytes()));
  changed.data<float>()[11] += 1;
  up = changed;
  EXPECT_FALSE(rig.order().kept) << "another model";
}

// Many short sequences share passes, and none sees another: their work is that of each alone.
TEST(DropOrder, SequencesAreApart) {
  Rig rig;
  const auto work_of = [&](std::vector<std::vector<int32_t>> sequences) {
    rig.sequences = std::move(sequences);
    const uint64_t before = rig.story.ctx.counters().total().madds;
    EXPECT_FALSE(rig.order().kept);
    return rig.story.ctx.counters().total().madds - before;
  };
  const uint64_t whole = work_of(rig.text(512));
  const uint64_t cut = work_of(rig.text(512, 64));  // the same tokens: another key
  EXPECT_LT(cut, whole) << "attention reads less";
  EXPECT_EQ(work_of(rig.text(64)) * 8, cut);
}

TEST(DropOrder, CancelledLeavesNothing) {
  Rig rig;
  const std::atomic<bool> cancel{true};
  EXPECT_FALSE(
      drop_order(rig.story.ctx, rig.story.model, rig.sequences, {.cancel = &cancel}, rig.folder.path()));
  EXPECT_TRUE(std::filesystem::is_empty(rig.folder.path()));
}

}  // namespace
}  // namespace fathom
