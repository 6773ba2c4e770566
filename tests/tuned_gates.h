// An adapter for the tests of verbs: scalar gates on kStories, not calibrated, hardly trained.
#pragma once

#include <gtest/gtest.h>

#include "program.h"
#include "support/test_paths.h"

namespace fathom {

// A new folder with text.txt (a book's first 24,000 bytes), gates, and the cache of its tokens.
inline void tune_gates(const std::filesystem::path& folder) {
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const auto at = [&](const char* name) { return (folder / name).string(); };
  std::ifstream book(FATHOM_SOURCE_DIR "/configs/small/secret_garden.txt");
  std::string text(24000, ' ');
  book.read(text.data(), static_cast<std::streamsize>(text.size()));
  std::ofstream(at("text.txt")) << text;
  Words words{"tune", "-m", kStories, "--method", "gate_skip", "-o", at("gates"), "-q"};
  for (const char* setting :
       {"schedule_steps=1", "context=32", "batch=2", "method.gate=scalar", "method.init_std=0.2"})
    words = words + Words{"--set", setting};
  const auto tuned =
      run_fathom(words + Words{"--data", at("text.txt"), "--set", "data_cache=" + at("cache")});
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
}

}  // namespace fathom
