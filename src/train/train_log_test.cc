#include "train/train_log.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/mapped_file.h"
#include "support/test_paths.h"
#include "train/event_file.h"
#include "train/temporary_folder_test.h"

namespace fathom {
namespace {

TEST(TrainLog, IsCutBackToAStep) {
  const TemporaryFolder folder;
  const std::string path = folder.at("log.jsonl");
  {
    TrainLog log(path, 0);
    for (int64_t step = 1; step <= 5; ++step)
      log.write(step, {{"loss", 1.5 * static_cast<double>(step)}, {"tokens", 8.0}});
  }
  std::ofstream(path, std::ios::app) << "{\"step\": 6, \"lo";  // a crash in the middle of a line
  {
    TrainLog log(path, 3);
    log.write(4, {{"loss", std::nan("")}});
    log.cut(4);
    log.write(5, {{"loss", 2.0}});
  }
  EXPECT_EQ(file_text(path),
            "{\"step\":1,\"loss\":1.5,\"tokens\":8}\n{\"step\":2,\"loss\":3,\"tokens\":8}\n"
            "{\"step\":3,\"loss\":4.5,\"tokens\":8}\n{\"step\":4,\"loss\":null}\n{\"step\":5,\"loss\":2}\n");
  EXPECT_NE(error_of([&] { TrainLog(folder.at("none/log.jsonl"), 0); }).find("cannot write"),
            std::string::npos);
}

// The bytes that TensorBoard's own writer makes of the same events: tools/make_event_goldens.py.
TEST(EventFile, BytesAsTensorBoardWritesThem) {
  const std::string bytes = tfrecord(version_event(1.5)) + tfrecord(start_event(2.5, 300)) +
                            tfrecord(scalars_event(3.5, 301, {{"train/loss", 2.25}, {"lr", 1e-3}}));
  const std::string golden = file_text(std::string(FATHOM_TEST_DATA) + "/optimizers/events.golden");
  ASSERT_FALSE(golden.empty());
  EXPECT_EQ(bytes, golden);
}

TEST(EventFile, TwoRunsHaveTwoFiles) {
  const TemporaryFolder folder;
  {
    EventFile a(folder.at("tb"), 0), b(folder.at("tb"), 10);
    a.write(1, {{"loss", 1.0}});
    b.write(11, {{"loss", 0.5}});
  }
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.at("tb"))) {
    ++files;
    EXPECT_EQ(entry.path().filename().string().find("events.out.tfevents."), 0u);
    EXPECT_GT(entry.file_size(), 60u);
  }
  EXPECT_EQ(files, 2);
}

}  // namespace
}  // namespace fathom
