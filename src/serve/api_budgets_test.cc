// Budgets by request and by load, and speculation.
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "infer/generate.h"
#include "serve/api_rig_test.h"
#include "support/test_paths.h"

namespace fathom {
namespace {

TEST(Api, BudgetsOfTheTable) {
  BuiltinApi rig;
  const std::vector<float>& grid = rig.served.grid;
  ASSERT_GT(grid.size(), 2u);
  EXPECT_EQ(grid.front(), 1.0f);
  const std::string message =
      rig.refusal("/v1/completions", with(kGreedy, {{"budget", 0.05}}), 400, "budget");
  EXPECT_NE(message.find(fmt::format("from {:g} to 1", grid.back())), std::string::npos) << message;
  EXPECT_NE(rig.refusal("/v1/completions", with(kGreedy, {{"saved", 0.95}}), 400, "saved"), "");
  const Json full = rig.complete_text(with(kGreedy, {{"budget", 1}}));
  EXPECT_EQ(full["usage"]["block_flops"], 1.0);
  const Json saved = rig.complete_text(with(kGreedy, {{"saved", 0.2}}));
  EXPECT_EQ(saved["usage"]["budget"], 0.8);
  EXPECT_LT(saved["usage"]["block_flops"], 1.0);
  EXPECT_FALSE(rig.complete_text(kGreedy)["usage"].contains("budget"));  // the method's own rule
  StoryApi dense;
  EXPECT_EQ(dense.complete_text(with(kGreedy, {{"budget", 1}}))["usage"]["budget"], 1.0);
  EXPECT_EQ(dense.complete_text(with(kGreedy, {{"budget", "auto"}}))["usage"]["budget"], 1.0);
  EXPECT_NE(
      dense.refusal("/v1/completions", with(kGreedy, {{"budget", 0.5}}), 400, "budget").find("dense model"),
      std::string::npos);
}

TEST(Api, SpeculationWritesTheSameText) {
  BuiltinApi rig;
  const Json plain = rig.complete_text(with(kGreedy, {{"budget", 1}, {"max_tokens", 40}}));
  const Json drafted = rig.complete_text(
      with(kGreedy, {{"budget", 1}, {"max_tokens", 40}, {"speculate", 4}, {"draft", "method"}}));
  EXPECT_EQ(plain["choices"][0]["text"], drafted["choices"][0]["text"]);
  EXPECT_GT(drafted["usage"]["completion_tokens_details"]["drafted_tokens"], 0);
  rig.served.grid = {1.0f, 0.7f};  // as if less were not calibrated
  rig.api->serve(rig.served);
  EXPECT_EQ(rig.complete_text(
                with(kGreedy, {{"budget", 1}, {"max_tokens", 40}, {"speculate", 4}}))["choices"][0]["text"],
            plain["choices"][0]["text"]);
  const Json low = with(kGreedy, {{"budget", 0.6}, {"speculate", 4}});
  EXPECT_NE(rig.refusal("/v1/completions", with(low, {{"draft", "method"}})).find("0.7"),
            std::string::npos);  // the method's drafts need less than the output
  for (const Json& drafts : {Json(true), Json(4)})
    EXPECT_EQ(rig.complete_text(with(low, {{"speculate", drafts}}))["choices"][0]["text"],
              rig.complete_text(with(low, {{"speculate", false}}))["choices"][0]["text"]);
  StoryApi dense;  // without a method drafts are looked up
  for (const Json& drafts : {Json{{"speculate", 4}, {"draft", "lookup"}}, Json{{"speculate", 4}}}) {
    const Json looked = dense.complete_text(with(kEndless, drafts));
    EXPECT_EQ(looked["choices"][0]["text"], dense.complete_text(kEndless)["choices"][0]["text"]);
    EXPECT_GT(looked["usage"]["completion_tokens_details"]["drafted_tokens"], 0);
  }
  const Json by_method = with(kEndless, {{"speculate", true}, {"draft", "method"}});
  EXPECT_FALSE(dense.refusal("/v1/completions", by_method).empty());
}

// What an automatic budget writes is what that budget writes, alone and on another runtime.
TEST(Api, AnAutomaticBudgetIsNamedAndKept) {
  ApiOptions options;
  options.target_latency = 1e-9;  // every token is too slow
  options.parallel = 4;
  BuiltinApi rig(options);
  const Json ask = with(kGreedy, {{"max_tokens", 20}});
  EXPECT_EQ(rig.complete_text(with(ask, {{"budget", "auto"}}))["usage"]["budget"],
            1.0);  // nothing is known yet
  const Json low = rig.complete_text(with(ask, {{"budget", "auto"}}));
  const float smallest = rig.served.grid.back();
  EXPECT_EQ(static_cast<float>(low["usage"]["budget"].get<double>()), smallest);
  const Json raised = rig.complete_text(with(ask, {{"budget", "auto"}, {"budget_floor", 0.85}}));
  EXPECT_EQ(raised["usage"]["budget"], 0.9);

  ModelRuntime::Options opened;
  opened.source.model = FATHOM_TEST_DATA "/../../models/builtin/builtin.gguf";
  opened.source.where.threads = 1;
  opened.context = 512;
  opened.budget = double{smallest};
  ModelRuntime alone(opened);
  alone.make_cache(-1, 1, EngineOptions().rows);
  Generator generator(alone.feeder(), alone.engine_options());
  GenerateOptions how;
  how.sampler.temperature = 0;
  how.max_tokens = 20;
  const GenerateResult want = generator.run(alone.tokenizer().encode("The old man"), how);
  EXPECT_EQ(low["choices"][0]["text"], want.text);
}

TEST(Api, TheFloorIsAnOption) {
  ApiOptions options;
  options.target_latency = 1e-9;
  options.budget_floor = 0.9f;
  BuiltinApi rig(options);
  rig.complete_text(kGreedy);
  EXPECT_EQ(rig.complete_text(with(kGreedy, {{"budget", "auto"}}))["usage"]["budget"], 0.9);
  EXPECT_EQ(rig.complete_text(with(kGreedy, {{"budget", "auto"}, {"budget_floor", 0.5}}))["usage"]["budget"],
            0.9);
}

TEST(Api, AFloorGoesWithoutABudgetWhereTheServerChooses) {
  ApiOptions options;
  options.target_latency = 1e-9;
  options.auto_budget = true;
  BuiltinApi rig(options);
  rig.complete_text(kGreedy);
  EXPECT_EQ(rig.complete_text(with(kGreedy, {{"budget_floor", 0.85}}))["usage"]["budget"], 0.9);
  rig.refusal("/v1/completions", with(kGreedy, {{"budget", 0.8}, {"budget_floor", 0.7}}), 400,
              "budget_floor");
  StoryApi plain;
  plain.refusal("/v1/completions", with(kGreedy, {{"budget_floor", 0.7}}), 400, "budget_floor");
}

// A stream without a chunk of usage says which budget it got, too.
TEST(Api, EveryChunkNamesTheBudget) {
  ApiOptions options;
  options.budget_floor = 0.9f;
  options.target_latency = 1e-9;
  options.auto_budget = true;
  BuiltinApi rig(options);
  rig.complete_text(kGreedy);
  const Json said = with(kGreedy, {{"stream", true}});
  const Json chat{{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"max_tokens", 4}, {"stream", true}};
  for (const auto& [path, body] : {std::pair("/v1/completions", said), {"/v1/chat/completions", chat}}) {
    const std::vector<Json> chunks = rig.ask(path, body)->chunks();
    EXPECT_GT(chunks.size(), 2u);
    for (const Json& chunk : chunks) EXPECT_EQ(chunk.at("budget"), 0.9) << chunk;
  }
  EXPECT_EQ(rig.complete_text(kGreedy)["budget"], 0.9);
  EXPECT_FALSE(StoryApi().complete_text(kGreedy).contains("budget"));
}

}  // namespace
}  // namespace fathom
