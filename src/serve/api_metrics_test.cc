// What the API says of its requests: log lines, metrics, refusals counted.
#include <atomic>
#include <nlohmann/json.hpp>
#include <numeric>

#include "serve/api_rig_test.h"
#include "serve/request_log.h"

namespace fathom {
namespace {

TEST(Api, LogLines) {
  StoryApi rig;
  rig.complete_text(kGreedy);
  ASSERT_EQ(rig.lines.size(), 1u);
  EXPECT_NE(rig.lines[0].find(" POST /v1/completions 200 "), std::string::npos) << rig.lines[0];
  for (const char* part : {"cmpl-", "queue ", "first token ", " + 12 tokens", "depth ", "length"})
    EXPECT_NE(rig.lines[0].find(part), std::string::npos) << part;
  EXPECT_EQ(rig.lines[0].find("old man"), std::string::npos);
  const std::string day = utc_text(std::chrono::system_clock::now()).substr(0, 4);
  EXPECT_TRUE(rig.lines[0].starts_with(day)) << rig.lines[0];
  rig.ask("/health");
  rig.ask("/metrics");
  EXPECT_EQ(rig.lines.size(), 1u);  // these are asked every few seconds
  ApiOptions options;
  options.json_logs = options.log_prompts = true;
  StoryApi json(options);
  json.ask("/v1/completions", kGreedy, "alice");
  const Json line = Json::parse(json.lines.at(0));
  EXPECT_TRUE(line["time"].get<std::string>().starts_with(day)) << line;
  EXPECT_EQ(utc_text(WallTime(std::chrono::milliseconds(951'782'400'007))), "2000-02-29T00:00:00.007Z");
  EXPECT_EQ(Json::parse(json_message("info", "a \"b\"\xff", WallTime())),
            (Json{{"time", "1970-01-01T00:00:00.000Z"}, {"level", "info"}, {"message", "a \"b\"\ufffd"}}));
  EXPECT_EQ(line["status"], 200);
  EXPECT_EQ(line["key"], "alice");
  EXPECT_EQ(line["generated_tokens"], 12);
  EXPECT_TRUE(line.contains("queue_ms") && line.contains("first_token_ms") && line.contains("total_ms"));
  EXPECT_NE(line["prompt"].get<std::string>().find("old man"), std::string::npos);
}

TEST(Api, Metrics) {
  StoryApi rig;
  rig.complete_text(kGreedy);
  rig.refusal("/v1/completions", {{"prompt", 5}});
  rig.wait_until_idle();
  const auto reply = rig.ask("/metrics");
  EXPECT_TRUE(reply->type.starts_with("text/plain"));
  const auto has = [&](const std::string& line) {
    EXPECT_NE(reply->body.find(line + "\n"), std::string::npos) << line << "\n" << reply->body;
  };
  const std::string label = "{model_name=\"small\"";
  has("fathom:num_requests_running" + label + "} 0");
  has("fathom:num_requests_waiting" + label + "} 0");
  has("fathom:generation_tokens_total" + label + "} 12");
  has("fathom:prompt_tokens_total" + label + "} " +
      std::to_string(rig.story.model.tokenizer->encode("The old man", {}).size()));
  for (const char* unit : {"attention", "ffn"})
    has("fathom:unit_skip_ratio" + label + ",layer=\"0\",unit=\"" + unit + "\"} 0");
  has("fathom:request_success_total" + label + ",finished_reason=\"length\"} 1");
  has("fathom:http_replies_total" + label + ",status=\"400\"} 1");
  has("fathom:time_to_first_token_seconds_count" + label + "} 1");
  has("fathom:inter_token_latency_seconds_count" + label + "} 11");
  has("fathom:e2e_request_latency_seconds_count" + label + "} 1");
  has("fathom:request_queue_time_seconds_count" + label + "} 1");
  has("fathom:token_depth_ratio_bucket" + label + ",le=\"1\"} 12");
  has("fathom:token_depth_ratio_bucket" + label + ",le=\"0.9\"} 0");
  has("fathom:request_skip_ratio_bucket" + label + ",le=\"0\"} 1");
  has("fathom:iteration_tokens_total_bucket" + label + ",le=\"1\"} 11");
  has("fathom:iteration_tokens_total_count" + label + "} 12");
  for (const char* name : {"kv_cache_usage_perc", "bytes_read_total", "spec_decode_num_draft_tokens_total"})
    EXPECT_NE(reply->body.find(std::string("# TYPE fathom:") + name), std::string::npos) << name;
}

// Each unit's share is told apart; their mean is the answer's.
// A token that ends an answer was generated, too.
TEST(Api, EndTokensAreCounted) {
  StoryApi rig;
  const int32_t end = rig.story.model.tokenizer->eos();
  const auto reply =
      rig.ask("/v1/completions", with(kGreedy, {{"logit_bias", {{std::to_string(end), 100}}}}));
  EXPECT_EQ(reply->json()["usage"]["completion_tokens"], 1);
  rig.wait_until_idle();
  EXPECT_NE(rig.ask("/metrics")->body.find("fathom:generation_tokens_total{model_name=\"small\"} 1\n"),
            std::string::npos);
}

TEST(Api, MetricsOfUnitsThatSkip) {
  BuiltinApi rig;
  const Json usage = rig.complete_text(
      {{"prompt", "Once upon a time"}, {"max_tokens", 24}, {"budget", rig.served.grid.back()}})["usage"];
  rig.wait_until_idle();
  const std::string text = rig.ask("/metrics")->body, name = "\nfathom:unit_skip_ratio{";
  std::vector<double> shares;
  for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1))
    shares.push_back(std::stod(text.substr(text.find("} ", at) + 2)));
  ASSERT_EQ(std::ssize(shares), 2 * rig.runtime.model().config.layers);
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  EXPECT_GT(sum, 0);
  EXPECT_NEAR(sum / static_cast<double>(shares.size()), usage["skip_ratio"].get<double>(), 1e-6);
}

TEST(Api, RefusalsOfTheTransportAreCountedAndLogged) {
  std::atomic<int> later = 0;
  ApiOptions options;
  options.now = [&] { return Moment() + std::chrono::seconds(1000 + later); };
  StoryApi rig(options);
  for (int i = 0; i < 100; ++i) rig.api->refused({403, "GET", "/evil", "the Host is not ours"});
  ASSERT_EQ(rig.lines.size(), 20u);  // a flood does not fill the disk
  EXPECT_NE(rig.lines[0].find(" GET /evil 403 "), std::string::npos) << rig.lines[0];
  EXPECT_NE(rig.lines[0].find("the Host is not ours"), std::string::npos);
  later = 11;
  rig.api->refused({400, "", "", "no request line"});
  ASSERT_EQ(rig.lines.size(), 21u);
  EXPECT_NE(rig.lines[20].find("no request line (80 refusals before this one have no line)"),
            std::string::npos)
      << rig.lines[20];
  const std::string text = rig.ask("/metrics")->body;
  EXPECT_NE(text.find("fathom:http_replies_total{model_name=\"small\",status=\"403\"} 100\n"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace fathom
