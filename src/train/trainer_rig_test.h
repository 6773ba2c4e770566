// A run over a small text in its own folder, as the trainer's tests use it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "base/sha256.h"
#include "model/load.h"
#include "support/test_paths.h"
#include "train/flat_values_test.h"
#include "train/temporary_folder_test.h"
#include "train/trainer.h"
#include "train/training_data.h"

namespace fathom {

class Trainers : public testing::Test {
 protected:
  std::string recipe(const std::string& more = "") const {
    return R"({"data": [")" + data_ + R"("], "data_cache": ")" + folder_.at("cache") +
           R"(", "batch": 2, "context": 24, "accumulate": 2, "schedule_steps": 20, "checkpoint": {"every": 10},
        "schedule": {"rate": 0.01, "warmup_steps": 3},
        "model": {"width": 32, "layers": 2, "heads": 2, "kv_heads": 1, "ffn_width": 48})" +
           (more.empty() ? "" : ", " + more) + "}";
  }

  struct Run {
    Context ctx;
    Recipe recipe;
    Model model;
    TrainingData data;
    std::unique_ptr<Trainer> trainer;

    // change: what becomes of the model before it is trained
    Run(const std::string& json, const std::string& dir, int threads = 2, bool resumes = false,
        Device device = Device::kCpu, const std::function<void(Model&)>& change = {})
        : ctx({.device = device, .threads = threads}), recipe(Recipe::parse(json, "recipe")) {
      recipe.check();
      const std::string tokenizer = std::string(FATHOM_TEST_DATA) + "/tokenizers/gpt2_style.gguf";
      const auto loaded = load_tokenizer(tokenizer);
      model = initial_model(ctx, complete_model(recipe.train.model, recipe.train, loaded.get()),
                            recipe.train.init, recipe.train.seed);
      model.tokenizer = loaded;
      model.tokenizer_path = tokenizer;
      if (change) change(model);
      move_model(ctx, model);
      data = open_training_data(ctx, recipe.train, model);
      trainer = std::make_unique<Trainer>(ctx, recipe, model, data, dir, resumes);
    }
    TrainResult run() { return trainer->run(never_); }

   private:
    std::atomic<bool> never_{false};
  };

  // fn changes the values that train.
  template <class Fn>
  static void change(Run& run, Fn&& fn) {
    const Tensor& flat = run.trainer->parameters().values();
    std::vector<float> values = host_values(run.ctx, flat);
    fn(values);
    set_values(run.ctx, flat, values);
  }

  static std::map<std::string, std::string> tensors_of(const std::string& checkpoint) {
    std::map<std::string, std::string> sums;
    for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
      if (entry.path().extension() != ".safetensors") continue;
      Sha256 hash;
      hash.add(file_text(entry.path().string()));
      sums[entry.path().filename().string()] = hash.hex();
    }
    return sums;
  }

  // What methods measured is kept beside the tokens.
  void forget_measurements() const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_.at("cache"))) {
      if (entry.path().filename().string().starts_with("measured-")) std::filesystem::remove(entry.path());
    }
  }

  static std::string text() {
    std::string all;
    for (int i = 0; i < 60; ++i)
      all += "The cat number " + std::to_string(i * i) + " sat on the mat and was happy.\n<|endoftext|>\n";
    return all;
  }

  TemporaryFolder folder_;
  std::string data_ = folder_.write("data.txt", text());
};

}  // namespace fathom
