// /v1/completions: the engine's own answers, whole and as events.
#include <cmath>
#include <nlohmann/json.hpp>

#include "infer/engine_rig_test.h"
#include "infer/writer.h"
#include "serve/api_rig_test.h"
#include "serve/json_mask.h"
#include "serve/reply_format.h"

namespace fathom {
namespace {

const Json kGreedyText{{"prompt", "Once upon a time"}, {"max_tokens", 12}, {"temperature", 0}};

// The same request, straight to the engine.
Heard heard(
    ApiRig& rig, const std::string& prompt, const std::function<void(Request&)>& change = [](Request&) {}) {
  Request request;
  request.prompt = rig.served.tokenizer().encode(prompt);
  request.sampler = {.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0};
  request.sampler.penalise_prompt = false;
  request.max_tokens = 12;
  change(request);
  Answer answer = std::move(rig.engine->submit(request).front());
  return hear(answer);
}

// The texts of a streamed reply's choices, put together.
std::string streamed_text(const FakeReply& reply, int64_t index = 0) {
  std::string text;
  for (const Json& chunk : reply.chunks()) {
    for (const Json& choice : chunk["choices"]) {
      if (choice["index"] == index) text += choice["text"];
    }
  }
  return text;
}

TEST(Completions, TheEnginesTextAndCounts) {
  StoryApi rig;
  const Heard want = heard(rig, "Once upon a time", [](Request& r) { r.sampler.temperature = 0; });
  const Json got = rig.complete_text(kGreedyText);
  EXPECT_EQ(got["object"], "text_completion");
  EXPECT_EQ(got["model"], "small");
  const Json choice = got["choices"][0];
  EXPECT_EQ(choice["text"], want.text);
  EXPECT_EQ(choice["index"], 0);
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_TRUE(choice["logprobs"].is_null());
  const Json usage = got["usage"];
  EXPECT_EQ(usage["prompt_tokens"], rig.story.encode("Once upon a time").size());
  EXPECT_EQ(usage["completion_tokens"], 12);
  EXPECT_EQ(usage["total_tokens"], usage["prompt_tokens"].get<int>() + 12);
  EXPECT_EQ(usage["block_flops"], 1.0);
  EXPECT_EQ(usage["skip_ratio"], 0.0);
}

TEST(Completions, DefaultsAreOpenAis) {
  StoryApi rig;
  const Json got = rig.complete_text({{"prompt", "The cat"}, {"seed", 7}});
  const Heard want = heard(rig, "The cat", [](Request& r) {
    r.sampler.seed = 7;
    r.max_tokens = 16;
  });
  EXPECT_EQ(got["choices"][0]["text"], want.text);
  EXPECT_EQ(got["seed"], 7);
  EXPECT_EQ(got["usage"]["completion_tokens"], 16);
}

TEST(Completions, ASeedIsDrawnAndTold) {
  StoryApi rig;
  const Json first = rig.complete_text({{"prompt", "The cat"}, {"max_tokens", 30}});
  const Json again = rig.complete_text({{"prompt", "The cat"}, {"max_tokens", 30}, {"seed", first["seed"]}});
  const Json other = rig.complete_text({{"prompt", "The cat"}, {"max_tokens", 30}});
  EXPECT_EQ(first["choices"][0]["text"], again["choices"][0]["text"]);
  EXPECT_NE(first["seed"], other["seed"]);
  EXPECT_NE(first["choices"][0]["text"], other["choices"][0]["text"]);
}

TEST(Completions, StreamingIsTheWholeInPieces) {
  StoryApi rig;
  const Json whole = rig.complete_text(kGreedyText);
  const auto stream =
      rig.ask("/v1/completions",
              with(kGreedyText, {{"stream", true}, {"stream_options", {{"include_usage", true}}}}));
  EXPECT_EQ(stream->status, 200);
  EXPECT_EQ(stream->type, "text/event-stream");
  EXPECT_EQ(streamed_text(*stream), whole["choices"][0]["text"]);
  const std::vector<Json> chunks = stream->chunks();
  ASSERT_GT(chunks.size(), 4u);
  for (size_t i = 0; i + 2 < chunks.size(); ++i)
    EXPECT_TRUE(chunks[i]["choices"][0]["finish_reason"].is_null());
  for (size_t i = 0; i + 1 < chunks.size(); ++i) {
    EXPECT_TRUE(chunks[i].contains("usage"));
    EXPECT_TRUE(chunks[i]["usage"].is_null());
  }
  EXPECT_EQ(chunks[chunks.size() - 2]["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(chunks.back()["choices"].empty());
  Json usage = whole["usage"];
  EXPECT_EQ(chunks.back()["usage"]["completion_tokens"], usage["completion_tokens"]);
  EXPECT_EQ(chunks.back()["usage"]["prompt_tokens"], usage["prompt_tokens"]);
  // Without being asked for, there is no chunk of usage.
  const auto plain = rig.ask("/v1/completions", with(kGreedyText, {{"stream", true}}));
  EXPECT_EQ(plain->chunks().size(), chunks.size() - 1);
  for (const Json& chunk : plain->chunks()) EXPECT_FALSE(chunk.contains("usage"));
}

TEST(Completions, AnswersOfSeveralPromptsKeepTheirPlaces) {
  StoryApi rig;
  const Json body{{"prompt", {"Once upon", "The cat", "A dog"}}, {"n", 2}, {"max_tokens", 8}, {"seed", 5}};
  const Json whole = rig.complete_text(body);
  ASSERT_EQ(whole["choices"].size(), 6u);
  const auto stream = rig.ask("/v1/completions", with(body, {{"stream", true}}));
  const std::vector<std::string> prompts{"Once upon", "The cat", "A dog"};
  for (size_t i = 0; i < 6; ++i) {
    const Heard want = heard(rig, prompts[i / 2], [&](Request& r) {
      r.sampler.seed = answer_seed(5, static_cast<int64_t>(i % 2));
      r.max_tokens = 8;
    });
    EXPECT_EQ(whole["choices"][i]["index"], i);
    EXPECT_EQ(whole["choices"][i]["text"], want.text) << i;
    EXPECT_EQ(streamed_text(*stream, static_cast<int64_t>(i)), want.text) << i;
  }
}

TEST(Completions, StopsEndTokensAndLeastTokens) {
  StoryApi rig;
  const std::string text = rig.complete_text(with(kGreedyText, {{"max_tokens", 40}}))["choices"][0]["text"];
  const std::string stop = text.substr(10, 5);
  const Json cut = rig.complete_text(with(kGreedyText, {{"max_tokens", 40}, {"stop", {stop}}}))["choices"][0];
  EXPECT_EQ(cut["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(cut["finish_reason"], "stop");
  const std::vector<int32_t> ids =
      heard(rig, "Once upon a time", [](Request& r) { r.sampler.temperature = 0; }).ids;
  const Json ended = rig.complete_text(
      with(kGreedyText, {{"stop_token_ids", {ids[4]}}, {"logprobs", 0}, {"return_depth", true}}));
  const size_t first = static_cast<size_t>(std::find(ids.begin(), ids.end(), ids[4]) - ids.begin());
  EXPECT_EQ(ended["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(ended["usage"]["completion_tokens"], first + 1);  // the end token, too
  EXPECT_EQ(ended["choices"][0]["depth"].size(), first);      // of the text
  EXPECT_EQ(ended["choices"][0]["logprobs"]["tokens"].size(), first + 1);
  const Json later = rig.complete_text(with(kGreedyText, {{"stop_token_ids", {ids[4]}}, {"min_tokens", 12}}));
  EXPECT_EQ(later["choices"][0]["finish_reason"], "length");
}

TEST(Completions, BiasAndPenalties) {
  StoryApi rig;
  const int32_t id = rig.story.encode("Once upon a time").back();
  const Json forced =
      rig.complete_text(with(kGreedyText, {{"logit_bias", {{std::to_string(id), 100}}}, {"max_tokens", 3}}));
  const std::string piece = rig.served.tokenizer().piece(id);
  EXPECT_EQ(forced["choices"][0]["text"], piece + piece + piece);
}

// Penalties count the answer's tokens, not the prompt's.
TEST(Completions, PenaltiesLeaveThePromptOut) {
  StoryApi rig;
  const std::string prompt = "Once upon a time there was a little girl. She was a happy girl and she had a";
  const auto engines = [&](bool of_prompt) {
    return heard(rig, prompt,
                 [&](Request& r) {
                   r.sampler.temperature = 0;
                   r.sampler.presence_penalty = r.sampler.frequency_penalty = 2;
                   r.sampler.penalise_prompt = of_prompt;
                 })
        .text;
  };
  ASSERT_NE(engines(false), engines(true));
  const Json body{{"prompt", prompt},
                  {"temperature", 0},
                  {"max_tokens", 12},
                  {"presence_penalty", 2},
                  {"frequency_penalty", 2}};
  EXPECT_EQ(rig.complete_text(body)["choices"][0]["text"], engines(false));
}

// What lm-evaluation-harness reads: prompt + 1 entries, and whether each token was the most likely.
TEST(Completions, EchoScoresThePrompt) {
  StoryApi rig;
  const std::vector<std::vector<int32_t>> prompts{rig.story.encode("Once upon a time there was"),
                                                  rig.story.encode("The cat")};
  const Json got = rig.complete_text({{"prompt", prompts},
                                      {"temperature", 0},
                                      {"max_tokens", 1},
                                      {"logprobs", 1},
                                      {"echo", true},
                                      {"seed", 1234}});
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Json choice = got["choices"][i];
    const Json scores = choice["logprobs"];
    for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
      ASSERT_EQ(scores[list].size(), prompts[i].size() + 1) << list;
    EXPECT_TRUE(scores["token_logprobs"][0].is_null());
    EXPECT_TRUE(scores["top_logprobs"][0].is_null());
    Request request = request_of(prompts[i], 1);
    request.score_prompt = true;
    request.log_probs = 1;
    Answer answer = std::move(rig.engine->submit(request).front());
    const Heard want = hear(answer);
    for (size_t at = 1; at < prompts[i].size(); ++at) {
      const auto value = scores["token_logprobs"][at].get<double>();
      EXPECT_EQ(static_cast<float>(value), want.prompt->logprobs[at]);
      double best = -INFINITY;
      for (const auto& [token, other] : scores["top_logprobs"][at].items())
        best = std::max(best, other.get<double>());
      const bool greedy = want.prompt->top[at][0].id == prompts[i][at];
      EXPECT_EQ(value == best, greedy) << at;
      EXPECT_EQ(scores["top_logprobs"][at].size(), greedy ? 1u : 2u);
    }
    EXPECT_EQ(choice["text"], rig.served.tokenizer().decode(prompts[i]) + want.text);
  }
}

TEST(Completions, EchoWithoutNewTokensAndInAStream) {
  StoryApi rig;
  const Json body{{"prompt", "The cat sat"}, {"max_tokens", 0}, {"logprobs", 2}, {"echo", true}};
  const Json whole = rig.complete_text(body);
  EXPECT_EQ(whole["choices"][0]["text"], "The cat sat");
  EXPECT_EQ(whole["choices"][0]["logprobs"]["tokens"].size(), rig.story.encode("The cat sat").size());
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "length");
  const Json more = with(body, {{"max_tokens", 5}, {"temperature", 0}});
  const Json scores = rig.complete_text(more)["choices"][0]["logprobs"];
  const auto stream = rig.ask("/v1/completions", with(more, {{"stream", true}}));
  Json joined;
  for (const Json& chunk : stream->chunks()) {
    const Json part = chunk["choices"][0]["logprobs"];
    if (part.is_null()) continue;
    for (const auto& [name, list] : part.items()) {
      for (const Json& value : list) joined[name].push_back(value);
    }
  }
  EXPECT_EQ(joined, scores);
  EXPECT_EQ(streamed_text(*stream).substr(0, 11), "The cat sat");
}

// Offsets count characters of the text, as Python does.
TEST(Completions, OffsetsPointIntoTheText) {
  StoryApi rig;
  const Json choice = rig.complete_text(with(kGreedyText, {{"logprobs", 0}, {"echo", true}}))["choices"][0];
  const std::string text = choice["text"];
  const Json scores = choice["logprobs"];
  for (size_t i = 2; i < scores["tokens"].size(); ++i) {
    const std::string token = scores["tokens"][i];
    EXPECT_EQ(text.substr(scores["text_offset"][i].get<size_t>(), token.size()), token) << i;
  }
}

// Tokens that are written alike have different keys.
TEST(Completions, KeysAreUnique) {
  StoryApi rig;
  const Tokenizer& tokenizer = rig.served.tokenizer();
  const int32_t byte = 'a' + 3, letter = tokenizer.id_of("a");
  ASSERT_EQ(tokenizer.piece(byte), tokenizer.piece(letter));
  const auto format = completion_format({.id = "x", .model = "small", .log_probs = 2}, rig.served);
  Token token{.id = 300, .text = "x", .bytes = "x", .logprob = -3};
  token.top = {{letter, -1.0f}, {byte, -2.0f}};
  AnswerPart part;
  part.tokens = {token};
  const Json top = Json::parse(format->whole({part}, {}))["choices"][0]["logprobs"]["top_logprobs"][0];
  EXPECT_EQ(top,
            (Json{{"a", -1.0}, {"token_id:" + std::to_string(byte), -2.0}, {tokenizer.piece(300), -3.0}}));
}

// Bytes of one character come in several tokens; events hold whole characters only.
TEST(Completions, EventsAreWholeCharacters) {
  StoryApi rig;
  const Json body{{"prompt", "Once"},
                  {"max_tokens", 7},
                  {"temperature", 0},
                  {"logprobs", 0},
                  {"logit_bias", {{std::to_string(0xe2 + 3), 60}}},
                  {"stream", true}};
  const auto stream = rig.ask("/v1/completions", body);
  std::string tokens;
  for (const Json& chunk : stream->chunks()) {
    const Json scores = chunk["choices"][0]["logprobs"];
    if (!scores.is_null()) tokens += scores["tokens"][0];
  }
  EXPECT_NE(tokens.find("bytes:\\xe2"), std::string::npos) << tokens;
}

// Each of these characters is several tokens, and no event has a part of one.
TEST(Completions, EventsOfASchemaAreWholeCharacters) {
  StoryApi rig;
  const auto masks =
      std::make_shared<const JsonMasks>(*rig.story.model.tokenizer, end_token_ids(rig.story.model));
  rig.served.masks.schema = [masks](const std::string& schema) { return masks->schema(schema); };
  rig.api->serve(rig.served);
  const Json schema{{"enum", {"日😀"}}};
  const Json body{{"prompt", "Once"},
                  {"max_tokens", 40},
                  {"temperature", 0},
                  {"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", schema}}}}},
                  {"stream", true},
                  {"stream_options", {{"include_usage", true}}}};
  const auto stream = rig.ask("/v1/completions", body);
  std::vector<std::string> pieces;
  int64_t tokens = 0;
  for (const Json& chunk : stream->chunks()) {
    for (const Json& choice : chunk["choices"]) {
      if (choice["text"] != "") pieces.push_back(choice["text"]);
    }
    if (chunk.contains("usage") && !chunk["usage"].is_null()) tokens = chunk["usage"]["completion_tokens"];
  }
  EXPECT_EQ(pieces, (std::vector<std::string>{"\"", "日", "😀", "\""}));
  EXPECT_GE(tokens, 1 + 3 + 4 + 1);
}

TEST(Completions, DepthOfEachPiece) {
  BuiltinApi rig;
  Json body{{"prompt", "The old man"},
            {"max_tokens", 10},
            {"temperature", 0},
            {"budget", 0.8},
            {"return_depth", true}};
  const Json got = rig.complete_text(body);
  Request request = request_of(rig.served.tokenizer().encode("The old man"), 10);
  request.budget = 0.8f;
  request.units = true;
  Answer answer = std::move(rig.engine->submit(request).front());
  std::vector<Token> tokens;
  while (const std::optional<Token> token = answer.next()) {
    if (!token->ends) tokens.push_back(*token);
  }
  const Json depth = got["choices"][0]["depth"];
  ASSERT_EQ(depth.size(), tokens.size());
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_EQ(depth[i]["depth"], tokens[i].depth);
    EXPECT_FALSE(depth[i].contains("units"));
    text += depth[i]["text"];
  }
  EXPECT_EQ(got["choices"][0]["text"].get<std::string>().substr(0, text.size()), text);
  const Json& usage = got["usage"];
  EXPECT_EQ(usage["budget"], 0.8);
  EXPECT_GT(usage["skip_ratio"], 0.0);
  EXPECT_NEAR(usage["block_flops"].get<double>(),
              answer.end().stats.block_madds / answer.end().stats.dense_block_madds, 0.2);
  body["return_depth"] = "units";
  const Json units = rig.complete_text(body)["choices"][0]["depth"];
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::string bits;
    for (const uint8_t unit : tokens[i].units) bits += static_cast<char>('0' + unit);
    EXPECT_EQ(units[i]["units"], bits);
    EXPECT_EQ(bits.size(), static_cast<size_t>(2 * rig.served.layers()));
  }
}

}  // namespace
}  // namespace fathom
