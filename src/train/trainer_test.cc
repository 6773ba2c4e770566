#include "train/trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "infer/trained_rule.h"
#include "io/atomic_file.h"
#include "model/load.h"
#include "skip/adapter.h"
#include "train/train_bar.h"
#include "train/trainer_rig_test.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

// The checkpoint `from`, whole, with another state, as that of `step`.
void write_again(const std::string& from, int64_t step,
                 const std::function<void(nlohmann::ordered_json&)>& change) {
  write_checkpoint(fs::path(from).parent_path().string(), step, {}, [&](const std::string& folder) {
    fs::create_directories(folder);
    fs::copy(from, folder, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    fs::remove(folder + "/DONE");
    auto state = nlohmann::ordered_json::parse(file_text(from + "/state.json"));
    state["step"] = step;
    change(state);
    write_file_atomically(folder + "/state.json", state.dump());
  });
}

TEST_F(Trainers, LearnsAndLogs) {
  Run run(recipe(R"("validation": {"share": 0.1, "every": 10, "batches": 2})"), folder_.at("run"));
  const double before = run.trainer->validate();
  EXPECT_NEAR(before, std::log(static_cast<double>(run.model.config.vocab)), 0.1);
  const TrainResult result = run.run();
  EXPECT_EQ(result.steps, 20);
  EXPECT_LT(result.validation_ce, before - 0.5);
  EXPECT_LT(result.ce, before - 0.5);
  EXPECT_EQ(result.checkpoint, folder_.at("run") + "/step-20");
  EXPECT_EQ(result.skip_ratio, 0);
  EXPECT_NEAR(result.net_flops, 1, 1e-3);
  int64_t line_number = 0;
  std::istringstream lines(file_text(folder_.at("run") + "/log.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    EXPECT_EQ(json["step"], ++line_number);
    for (const char* key :
         {"loss", "ce", "lr", "tokens", "tokens_per_s", "waits_data", "skip_ratio", "net_flops"})
      EXPECT_TRUE(json.contains(key)) << key;
    EXPECT_EQ(json.contains("validation_ce"), line_number % 10 == 0);
    EXPECT_GT(json["tokens"], 90 * line_number);  // 4 samples of 24, the last one of a pass shorter
    EXPECT_LE(json["tokens"], 96 * line_number);
  }
  EXPECT_EQ(line_number, 20);
  // What was written is a model that loads and has the weights.
  const Model loaded = load_model(run.ctx, result.checkpoint);
  const Tensor got = loaded.weights.blocks[1].down, want = run.model.weights.blocks[1].down;
  ASSERT_EQ(got.numel(), want.numel());
  for (int64_t i = 0; i < got.numel(); ++i) ASSERT_EQ(got.data<float>()[i], want.data<float>()[i]);
}

// 20 steps are 10, an end without warning, and 10 more from what is on the disk: bit for bit, at any thread
// count.
TEST_F(Trainers, ResumeIsExact) {
  for (const char* extra : {"", R"("precision": "bf16", "optimizer": {"kind": "adafactor", "eps": 1e-30})",
                            R"("method": "gate_skip", "recompute": true)"}) {
    const std::string dir = folder_.at("whole"), part = folder_.at("part");
    fs::remove_all(dir);
    fs::remove_all(part);
    Run whole(recipe(extra), dir, 1);
    whole.run();
    {
      Run first(recipe(extra), part, 2);
      first.recipe.train.steps = 12;
      first.run();
    }
    fs::remove(part + "/step-12/DONE");  // a crash in the middle of the last one
    Run second(recipe(extra), part, 2);
    ASSERT_TRUE(second.trainer->resume());
    EXPECT_EQ(second.trainer->steps(), 10);
    second.run();
    const auto sums = tensors_of(dir + "/step-20");
    EXPECT_GE(sums.size(), 2u);
    EXPECT_EQ(tensors_of(part + "/step-20"), sums) << extra;
    EXPECT_EQ(tensors_of(part + "/last"), sums);
    const std::string log = file_text(part + "/log.jsonl");
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 20);
  }
}

// What a checkpoint holds is not measured again: routers that began in the harm order, and their prices;
// lists of units.
TEST_F(Trainers, ResumingMeasuresNothing) {
  for (const char* method :
       {R"({"name": "priced", "init": "harm_order"})", R"("harm_order")", R"("short_gpt")"}) {
    SCOPED_TRACE(method);
    const std::string dir = folder_.at("run"),
                      json = recipe(std::string(R"("steps": 5, "method": )") + method);
    fs::remove_all(dir);
    fs::remove_all(folder_.at("whole"));
    Run whole(json, folder_.at("whole"), 2, true);  // there is nothing to resume: it is measured
    EXPECT_GT(whole.ctx.counters().total().madds, 0u);
    {
      Run first(json, dir);
      first.recipe.train.steps = 3;
      first.run();
    }
    forget_measurements();
    Run second(json, dir, 2, true);
    EXPECT_EQ(second.ctx.counters().total().madds, 0u);
    ASSERT_TRUE(second.trainer->resume());
    second.run();
    whole.run();
    EXPECT_EQ(tensors_of(dir + "/step-5"), tensors_of(folder_.at("whole") + "/step-5"));
    EXPECT_EQ(tensors_of(dir + "/step-5/skip"), tensors_of(folder_.at("whole") + "/step-5/skip"));
    EXPECT_EQ(file_text(dir + "/step-5/skip/adapter_config.json"),
              file_text(folder_.at("whole") + "/step-5/skip/adapter_config.json"));
  }
}

// A second run over the same text and model begins from what the first one measured, with other settings,
// too.
TEST_F(Trainers, MeasuresAModelOnATextOnce) {
  const auto work = [&](const std::string& method, const std::string& more = "") {
    Run run(recipe(R"("method": {)" + method + "}" + more), folder_.at("run"));
    return run.ctx.counters().total().madds;
  };
  const std::string list = R"("name": "harm_order")";
  const uint64_t first = work(list);
  EXPECT_GT(first, 0u);
  EXPECT_EQ(work(list + R"(, "kept": 0.5, "share_end": 0.5)"), 0u);
  EXPECT_EQ(work(R"("name": "priced", "init": "harm_order")"), 0u);
  EXPECT_EQ(work(list + R"(, "search": "greedily", "greedy_until": 0.99, "kept": 0.99, "share_end": 0.99)"),
            0u)
      << "one unit goes";
  EXPECT_GT(work(list + R"(, "search": "greedily")"), 0u) << "others go, too";
  EXPECT_EQ(work(list + R"(, "search": "greedily")"), 0u);
  EXPECT_EQ(work(list, R"(, "seed": 1)"), first) << "other weights and samples";
  EXPECT_EQ(work(list), 0u) << "the first is still there";
}

// Methods that measure the model do so on as many tokens as the recipe says, or on all there are.
TEST_F(Trainers, MeasuresOnSoManyTokens) {
  for (const char* method : {"harm_order", "attention_drop", "short_gpt"}) {
    const auto work = [&](const std::string& more) {
      Run run(recipe(std::string(R"("method": ")") + method + "\"" + more), folder_.at("run"));
      forget_measurements();
      return static_cast<double>(run.ctx.counters().total().madds) /
             static_cast<double>(run.data.train->tokens());
    };
    const double all = work(""), some = work(R"(, "prepare_tokens": 1)");
    EXPECT_NEAR(work(R"(, "prepare_tokens": 16384)"), all, 1e-9) << "unless set";
    EXPECT_GT(all, 1.5 * some) << method << ": more than one pass of 1024 rows";
    EXPECT_GT(all, 2 * 32 * 32) << "every token";
  }
}

// prepare_data is measured instead of the training text, all of it and nothing else; a run may go on without
// it.
TEST_F(Trainers, MeasuresOnAnotherText) {
  const std::string other = folder_.write("other.txt",
                                          "Dogs bark in the night.\n<|endoftext|>\nWho hears them?\n"),
                    key = R"(, "prepare_data": [")" + other + R"("])";
  for (const char* method : {"harm_order", "attention_drop", "short_gpt"}) {
    const std::string base = std::string(R"("steps": 2, "method": ")") + method + "\"";
    const auto work = [&](const std::string& json, const std::string& dir) {
      fs::remove_all(folder_.at(dir));
      Run run(json, folder_.at(dir), 2, true);
      forget_measurements();
      run.run();
      return run.ctx.counters().total().madds;
    };
    const auto measured = [&](const std::string& dir) {
      return nlohmann::json::parse(file_text(folder_.at(dir) + "/step-2/skip/adapter_config.json"))["method"]
          .dump();
    };
    const uint64_t own = work(recipe(base), "own"), small = work(recipe(base + key), "other");
    EXPECT_LT(small, own) << method << ": the other text has fewer tokens";
    std::string instead = recipe(base);
    instead.replace(instead.find(data_), data_.size(), other);
    work(instead, "instead");
    if (std::string_view(method) == "harm_order") {
      EXPECT_NE(measured("other"), measured("own")) << "harms are of the text";
      EXPECT_EQ(measured("other"), measured("instead")) << "nothing but that text was measured";
    }
    Run next(recipe(std::string(R"("steps": 3, "method": ")") + method + "\""), folder_.at("other"), 2, true);
    EXPECT_TRUE(next.trainer->resume()) << method << ": what was measured stays";
  }
}

TEST_F(Trainers, MeasuringCanBeStopped) {
  const std::atomic<bool> stop{true};
  Run run(recipe(R"("method": "harm_order", "prepare_tokens": 1)"), folder_.at("run"));
  Recipe other = Recipe::parse(recipe(R"("method": "harm_order")"), "recipe");
  EXPECT_THROW(Trainer(run.ctx, other, run.model, run.data, folder_.at("other"), false, &stop),
               PrepareCancelled);
  EXPECT_FALSE(fs::exists(folder_.at("other")));
}

TEST_F(Trainers, AccumulationIsOneLargeBatch) {
  std::vector<std::vector<float>> values;
  for (const char* shape : {R"("batch": 4, "accumulate": 1)", R"("batch": 1, "accumulate": 4)"}) {
    std::string json = recipe(shape);  // later keys win
    json.replace(json.find(R"("batch": 2, "context": 24, "accumulate": 2)"), 42,
                 R"("clip": 0, "context": 24)");
    Run run(json, folder_.at("run"));
    run.trainer->step(make_step(*run.data.train, 0, {run.recipe.train.batch, run.recipe.train.accumulate}),
                      {});
    values.push_back(host_values(run.ctx, run.trainer->parameters().gradients()));
  }
  double difference = 0, norm = 0;
  for (size_t i = 0; i < values[0].size(); ++i) {
    difference += std::pow(static_cast<double>(values[0][i] - values[1][i]), 2);
    norm += std::pow(static_cast<double>(values[0][i]), 2);
  }
  EXPECT_LT(std::sqrt(difference / norm), 1e-5);
}

// A checkpoint of an older version lacks the keys that are new since: they had their defaults then.
TEST_F(Trainers, ACheckpointWithoutNewKeysGoesOn) {
  {
    Run run(recipe(R"("steps": 10)"), folder_.at("run"));
    run.run();
  }
  write_again(folder_.at("run") + "/step-10", 11, [](nlohmann::ordered_json& state) {
    EXPECT_EQ(state["recipe"].erase("text_share"), 1u);
    EXPECT_EQ(state["recipe"]["lora"].erase("round"), 1u);
  });
  Run same(recipe(R"("steps": 12)"), folder_.at("run"), 2, true);
  EXPECT_TRUE(same.trainer->resume());
  Run other(recipe(R"("steps": 12, "text_share": 0.5, "method": {"name": "dense", "objective": "distill"})"),
            folder_.at("run"), 2, true);
  EXPECT_NE(error_of([&] { other.trainer->resume(); }).find("these keys differ: text_share"),
            std::string::npos);
}

TEST_F(Trainers, AnotherRecipeIsRefused) {
  {
    Run run(recipe(R"("steps": 5)"), folder_.at("run"));
    run.run();
  }
  Run other(recipe(R"("steps": 8, "clip": 0.5, "seed": 3)"), folder_.at("run"));
  EXPECT_EQ(error_of([&] { other.trainer->resume(); }),
            folder_.at("run") + "/step-5 was made by another recipe: these keys differ: seed, clip");
  Run longer(recipe(R"("steps": 8)"), folder_.at("run"));
  EXPECT_TRUE(longer.trainer->resume());
  EXPECT_EQ(longer.run().steps, 8);
  Run fresh(recipe(), folder_.at("nothing"));
  EXPECT_FALSE(fresh.trainer->resume());
}

TEST_F(Trainers, ACheckpointWithOldNamesGoesOn) {
  const std::string json =
      recipe(R"("steps": 10, "method": {"name": "mind_skip", "units": "mlp", "pool": "full"})");
  Run(json, folder_.at("run")).run();
  // The same checkpoint, as it was written when the key was called unit.
  const std::string last = folder_.at("run") + "/step-10";
  write_again(last, 11, [](nlohmann::ordered_json& state) {
    auto& method = state["recipe"]["method"];
    method["unit"] = method["units"].get<std::string>();
    method.erase("units");
  });
  Run second(json, folder_.at("run"), 2, true);
  testing::internal::CaptureStderr();
  EXPECT_TRUE(second.trainer->resume());
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("'unit' is now called 'units'"), std::string::npos) << said;
}

// A step that gives no number changes nothing, and is never saved.
TEST_F(Trainers, NoNumberStopsOrRollsBack) {
  const auto spoil = [](Run& run) {
    change(run, [](std::vector<float>& values) { values[5] = std::nanf(""); });
  };
  {
    Run run(recipe(R"("steps": 5)"), folder_.at("run"));
    run.run();
  }
  const auto before = tensors_of(folder_.at("run") + "/step-5");
  Run stops(recipe(), folder_.at("run"));
  ASSERT_TRUE(stops.trainer->resume());
  spoil(stops);
  const std::string message = error_of([&] { stops.run(); });
  EXPECT_EQ(message.find("step 6: the loss is "), 0u) << message;
  EXPECT_NE(message.find("step-5 is as it was"), std::string::npos) << message;
  EXPECT_EQ(tensors_of(folder_.at("run") + "/step-5"), before);

  const std::string back = recipe(R"("on_nan": "rollback")");
  Run rolls(back, folder_.at("other"));
  rolls.recipe.train.steps = 5;
  rolls.run();
  rolls.recipe.train.steps = 0;
  spoil(rolls);
  const TrainResult result = rolls.run();
  EXPECT_EQ(result.steps, 20);
  EXPECT_TRUE(std::isfinite(result.loss));
  const auto state = nlohmann::json::parse(file_text(folder_.at("other") + "/last/state.json"));
  EXPECT_EQ(state["sample"], 21 * 4);  // one step's data was passed by
}

// A spike: the weights jump when the running mean has settled (after 20 steps).
TEST_F(Trainers, ASpikeIsNoStep) {
  const auto times_8 = [](std::vector<float>& values) {
    for (float& value : values) value *= 8;
  };
  Run run(recipe(R"("spike": 1.5, "steps": 24, "seed": 3)"), folder_.at("run"));
  run.recipe.train.steps = 22;
  EXPECT_EQ(run.run().steps, 22);
  change(run, times_8);
  const std::vector<float> before = host_values(run.ctx, run.trainer->parameters().values());
  run.recipe.train.steps = 24;
  try {
    run.run();
    FAIL() << "the spike was trained on";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("step 23: the loss is"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("step-22 is as it was"), std::string::npos) << error.what();
  }
  EXPECT_EQ(host_values(run.ctx, run.trainer->parameters().values()), before);

  Run calm(recipe(R"("steps": 24, "seed": 3)"), folder_.at("calm"));  // without the key, it goes on
  calm.recipe.train.steps = 22;
  calm.run();
  change(calm, times_8);
  calm.recipe.train.steps = 24;
  EXPECT_EQ(calm.run().steps, 24);
}

TEST_F(Trainers, StopsEarlyAndWhenAsked) {
  Run run(
      recipe(
          R"("validation": {"share": 0.1, "every": 1, "patience": 2}, "schedule": {"rate": 1e-30, "warmup_steps": 0})"),
      folder_.at("run"));
  const TrainResult early = run.run();
  EXPECT_TRUE(early.stopped_early);
  EXPECT_EQ(early.steps, 3);
  EXPECT_EQ(early.best_checkpoint, folder_.at("run") + "/step-1");
  EXPECT_TRUE(fs::exists(folder_.at("run") + "/best/state.json"));

  Run asked(recipe(), folder_.at("asked"));
  const std::atomic<bool> stop{true};
  const TrainResult result = asked.trainer->run(stop);
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.steps, 0);
}

// The step that a run stops early at may be due for a checkpoint: what is fitted at the end is in it.
TEST_F(Trainers, AnEarlyStopKeepsWhatIsFittedAtTheEnd) {
  const auto head_of = [&](const char* name, const char* ridge) {
    Run run(recipe(R"("validation": {"share": 0.1, "every": 1, "patience": 2}, "checkpoint": {"every": 1},
                      "schedule": {"rate": 1e-30, "warmup_steps": 0},
                      "method": {"name": "nested", "lists": [0.7], "order": [2, 3], "ridge": )" +
                   std::string(ridge) + "}"),
            folder_.at(name));
    const TrainResult result = run.run();
    EXPECT_TRUE(result.stopped_early);
    return file_text(result.checkpoint + "/skip/adapter_model.safetensors");
  };
  EXPECT_NE(head_of("fitted", "0.1"), head_of("not", "0"));
}

// What a run that stopped early says when it is asked to go on, and the best step after it is long past.
TEST_F(Trainers, AnEarlyStopIsRemembered) {
  const std::string json = recipe(
      R"("validation": {"share": 0.1, "every": 1, "patience": 4}, "checkpoint": {"keep": 1},
         "schedule": {"rate": 1e-30, "warmup_steps": 0})");
  Run(json, folder_.at("run")).run();
  Run again(json, folder_.at("run"), 2, true);
  ASSERT_TRUE(again.trainer->resume());
  const TrainResult result = again.run();
  EXPECT_TRUE(result.stopped_early);
  EXPECT_FALSE(result.interrupted);
  EXPECT_EQ(result.steps, 5);
  EXPECT_EQ(result.best_checkpoint, folder_.at("run") + "/step-1");
  EXPECT_TRUE(fs::exists(folder_.at("run") + "/step-1/DONE")) << "it is older than all that are kept";
  EXPECT_FALSE(fs::exists(folder_.at("run") + "/step-4"));
}

TEST_F(Trainers, AFinishedRunSaysWhatItGave) {
  const std::string json = recipe(R"("steps": 4, "method": "gate_skip", "validation": {"share": 0.1})");
  const TrainResult first = Run(json, folder_.at("run")).run();
  Run again(json, folder_.at("run"), 2, true);
  ASSERT_TRUE(again.trainer->resume());
  const TrainResult second = again.run();
  EXPECT_EQ(second.steps, 4);
  EXPECT_GT(second.ce, 1);
  EXPECT_EQ(second.ce, first.ce);
  EXPECT_EQ(second.loss, first.loss);
  EXPECT_EQ(second.skip_ratio, first.skip_ratio);
  EXPECT_EQ(second.net_flops, first.net_flops);
  EXPECT_EQ(second.validation_ce, first.validation_ce);
}

TEST_F(Trainers, StatesThatNoRunWrites) {
  const std::string json = recipe(R"("steps": 3)"), dir = folder_.at("run");
  Run(json, dir).run();
  Run next(json, folder_.at("other"));
  int64_t step = 3;
  const auto refused = [&](const char* key, const nlohmann::ordered_json& value, const std::string& part) {
    write_again(dir + "/step-3", ++step, [&](auto& state) { state[key] = value; });
    Run run(recipe(R"("steps": 30)"), dir);
    const std::string message = error_of([&] { run.trainer->resume(); });
    EXPECT_NE(message.find("state.json: '" + std::string(key) + "' must be " + part), std::string::npos)
        << key << ": " << message;
    EXPECT_EQ(error_of([&] { Run(recipe(R"("steps": 30)"), dir, 2, true).trainer->resume(); }), message);
  };
  refused("step", nullptr, "a whole number from 0");
  refused("step", -1, "a whole number from 0");
  refused("step", 2, "that of its folder");
  refused("sample", -1, "a whole number from 0");
  refused("sample", 1e300, "a whole number from 0");
  refused("tokens", "many", "a whole number from 0");
  refused("worse", 99, "a whole number from 0");
  refused("optimizer_steps", -3, "a whole number from 0");
  refused("mean_loss", nullptr, "a finite number");
  refused("best", nlohmann::ordered_json::array(), "a finite number");
  refused("controllers", 7, "a list of numbers");
  refused("recipe", "none", "an object");
  refused("data_sums", {1, 2}, "a list of names and checksums");
  refused("kernels", 7, "a string");
  const std::string deep = "[" + std::string(100000, '[') + std::string(100001, ']');
  write_again(dir + "/step-3", ++step, [&](auto&) {});
  write_checkpoint(dir, ++step, {}, [&](const std::string& folder) {
    fs::create_directories(folder);
    write_file_atomically(folder + "/state.json", deep);
  });
  EXPECT_NE(error_of([&] {
              next.trainer->run(std::atomic<bool>{true});
              Run(json, dir, 2, true);
            }).find("expected JSON of at most"),
            std::string::npos);
}

TEST_F(Trainers, ChangedInputsAreNamed) {
  const std::string dir = folder_.at("run");
  const std::string json = recipe(R"("steps": 3, "base": "some", "method": "mind_skip")");
  Run(json, dir).run();
  Run spoiled(json, dir, 2, true, Device::kCpu, [](Model& model) {
    Tensor& down = model.weights.blocks[1].down;
    std::fill_n(down.data<float>(), down.numel(), 0.0f);
  });
  EXPECT_EQ(error_of([&] { spoiled.trainer->resume(); }),
            dir +
                "/step-3 was made from base of other content: these are not as they were: "
                "model.layers.1.mlp.down_proj.weight");
  std::string other = text();
  const size_t cat = other.rfind("cat");
  other.replace(cat, 3, "mat");
  folder_.write("data.txt", other);
  Run edited(json, dir, 2, true);
  const std::string message = error_of([&] { edited.trainer->resume(); });
  EXPECT_NE(message.find("made from data of other content: these are not as they were: data.txt"),
            std::string::npos)
      << message;
  folder_.write("data.txt", text());
  EXPECT_TRUE(Run(json, dir, 2, true).trainer->resume());
  // The same text in another folder is the same data.
  std::filesystem::create_directories(folder_.at("elsewhere"));
  std::filesystem::rename(data_, folder_.at("elsewhere/data.txt"));
  std::string moved = json;
  moved.replace(moved.find(data_), data_.size(), folder_.at("elsewhere/data.txt"));
  EXPECT_TRUE(Run(moved, dir, 2, true).trainer->resume());
}

TEST_F(Trainers, OtherKernelsAreSaid) {
  for (const char* precision : {"bf16", "f32"}) {
    const std::string dir = folder_.at(precision);
    const std::string json = recipe(std::string(R"("steps": 2, "precision": ")") + precision + "\"");
    Run(json, dir).run();
    write_again(dir + "/step-2", 3, [](auto& state) { state["kernels"] = "abacus"; });
    Run next(json, dir, 2, true);
    testing::internal::CaptureStderr();
    EXPECT_TRUE(next.trainer->resume());
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(said.find("the kernels of abacus, and goes on with those of") != std::string::npos,
              std::string(precision) == "bf16")
        << said;
  }
}

TEST_F(Trainers, KernelsThatRoundAlikeAreNotSaid) {
  const std::string json = recipe(R"("steps": 2, "precision": "bf16")"), dir = folder_.at("run");
  Run(json, dir).run();
  write_again(dir + "/step-2", 3, [](auto& state) { state["kernels"] = "avx2"; });
  setenv("FATHOM_ISA", "scalar", 1);
  Run next(json, dir, 2, true);
  unsetenv("FATHOM_ISA");
  testing::internal::CaptureStderr();
  EXPECT_TRUE(next.trainer->resume());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(Trainers, PassedOverOnce) {
  const std::string json = recipe(R"("steps": 3)"), dir = folder_.at("run");
  Run(json, dir).run();
  std::ofstream(dir + "/step-3/state.json", std::ios::app) << " ";
  testing::internal::CaptureStderr();
  Run next(json, dir, 2, true);
  next.trainer->resume();
  const std::string said = testing::internal::GetCapturedStderr();
  const size_t first = said.find("is passed over");
  EXPECT_NE(first, std::string::npos);
  EXPECT_EQ(said.find("is passed over", first + 1), std::string::npos) << said;
}

// A run that has ended keeps the share that it trained with beside its routers; one that was stopped has
// none.
TEST_F(Trainers, TheShareOfTrainingIsKept) {
  const std::string json = recipe(R"("method": {"name": "skip_layer", "share_end": 0.5})");
  Run run(json, folder_.at("run"));
  const TrainResult result = run.run();
  const std::string config = file_text(result.checkpoint + "/skip/adapter_config.json");
  EXPECT_NE(config.find("\"trained\""), std::string::npos);
  EXPECT_EQ(file_text(folder_.at("run") + "/step-10/skip/adapter_config.json").find("\"trained\""),
            std::string::npos);
  const Adapter adapter = load_adapter(run.ctx, result.checkpoint + "/skip", run.model);
  const TrainedRule rule = trained_rule_from_json(adapter.extra.trained, 4, "test");
  EXPECT_NEAR(rule.served, rule.trained, 0.05);
}

// Where stderr is a file, a line comes now and then.
TEST(TrainBar, WritesLinesIntoAFile) {
  testing::internal::CaptureStderr();
  {
    TrainBar rarely(0, 10);
    rarely.show(1, {2.5, 100, 0.25});
    TrainBar often(0, 10, std::chrono::seconds(0));
    often.show(5, {2.5, 100, 0.25});
  }
  const std::string written = testing::internal::GetCapturedStderr();
  EXPECT_NE(written.find("step 5 of 10: loss 2.5000, 100 tokens/s, skipped 25.0 %"), std::string::npos)
      << written;
  EXPECT_EQ(written.find("step 1 "), std::string::npos) << written;
}

}  // namespace
}  // namespace fathom
