#include "serve/api_worker.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <vector>

namespace fathom {
namespace {

// Keeps a worker busy until it is let go.
class Held {
 public:
  explicit Held(ApiWorker& worker) {
    std::promise<void> began;
    EXPECT_TRUE(worker.post(0, [&began, go = go_.get_future().share()] {
      began.set_value();
      go.wait();
    }));
    began.get_future().wait();
  }
  void let_go() { go_.set_value(); }

 private:
  std::promise<void> go_;
};

TEST(ApiWorker, RunsJobsInOrder) {
  ApiWorker worker(100, 100);
  std::vector<int> order;
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(worker.post(1, [&order, i] { order.push_back(i); }));
  worker.wait();
  EXPECT_EQ(worker.unfinished(), 0);
  ASSERT_EQ(order.size(), 50u);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(ApiWorker, BoundsWhatWaits) {
  ApiWorker worker(3, 100);
  Held held(worker);
  EXPECT_TRUE(worker.post(500, [] {}));  // alone, it may be as large as a body may be
  EXPECT_FALSE(worker.post(1, [] {}));
  EXPECT_EQ(worker.unfinished(), 2);
  held.let_go();
  worker.wait();
  Held again(worker);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(worker.post(0, [] {}));
  EXPECT_FALSE(worker.post(0, [] {}));
  again.let_go();
  worker.wait();
}

TEST(ApiWorker, AJobThatThrowsEndsNothing) {
  ApiWorker worker(3, 100);
  EXPECT_TRUE(worker.post(0, [] { throw std::bad_alloc(); }));
  bool ran = false;
  EXPECT_TRUE(worker.post(0, [&] { ran = true; }));
  worker.wait();
  EXPECT_TRUE(ran);
}

// What jobs hold is let go, whether they ran or not.
TEST(ApiWorker, StopDropsWhatWaits) {
  const auto token = std::make_shared<int>(1);
  ApiWorker worker(3, 100);
  Held held(worker);
  EXPECT_TRUE(worker.post(0, [token] { FAIL() << "it was dropped"; }));
  auto stopping = std::async(std::launch::async, [&] { worker.stop(); });
  while (token.use_count() > 1 && worker.unfinished() > 1) std::this_thread::yield();
  held.let_go();
  stopping.wait();
  EXPECT_EQ(token.use_count(), 1);
  EXPECT_FALSE(worker.post(0, [] {}));
}

}  // namespace
}  // namespace fathom
