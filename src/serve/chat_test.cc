// /v1/chat/completions.
#include <nlohmann/json.hpp>

#include "infer/chat_encoding.h"
#include "infer/engine_rig_test.h"
#include "serve/api_rig_test.h"

namespace fathom {
namespace {

const Json kAsk{
    {"messages", {{{"role", "developer"}, {"content", "Be brief."}}, {{"role", "user"}, {"content", "Hi"}}}},
    {"max_tokens", 10},
    {"temperature", 0}};

TEST(Chat, TheTemplatesPromptAnswered) {
  StoryApi rig;
  const auto reply = rig.ask("/v1/chat/completions", kAsk);
  ASSERT_EQ(reply->status, 200) << reply->body;
  const Json got = reply->json();
  const std::vector<ChatMessage> messages{{"system", "Be brief."}, {"user", "Hi"}};
  const Request request = request_of(encode_chat(rig.served.tokenizer(), *rig.served.chat, messages), 10);
  Answer answer = std::move(rig.engine->submit(request).front());
  const Heard want = hear(answer);
  EXPECT_EQ(got["object"], "chat.completion");
  EXPECT_EQ(got["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(got["choices"][0]["message"]["content"], want.text);
  EXPECT_EQ(got["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(got["usage"]["prompt_tokens"], request.prompt.size());
  EXPECT_TRUE(got["id"].get<std::string>().starts_with("chatcmpl-"));
}

TEST(Chat, StreamingBeginsWithTheRole) {
  StoryApi rig;
  const std::string text = rig.ask("/v1/chat/completions", kAsk)->json()["choices"][0]["message"]["content"];
  const auto stream = rig.ask("/v1/chat/completions", with(kAsk, {{"stream", true}, {"n", 2}}));
  std::string streamed[2];
  bool opened[2] = {false, false}, finished[2] = {false, false};
  for (const Json& chunk : stream->chunks()) {
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    const Json choice = chunk["choices"][0];
    const auto index = choice["index"].get<size_t>();
    EXPECT_EQ(choice["delta"].contains("role"), !opened[index]);
    EXPECT_FALSE(finished[index]);
    opened[index] = true;
    if (choice["delta"].contains("content")) streamed[index] += choice["delta"]["content"];
    finished[index] = choice["finish_reason"] == "length";
  }
  EXPECT_EQ(streamed[0], text);
  EXPECT_EQ(streamed[1], text);
  EXPECT_TRUE(finished[0] && finished[1]);
}

TEST(Chat, LogProbsOfEveryToken) {
  StoryApi rig;
  const Json got =
      rig.ask("/v1/chat/completions", with(kAsk, {{"logprobs", true}, {"top_logprobs", 3}}))->json();
  const Json content = got["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 10u);
  for (const Json& entry : content) {
    ASSERT_EQ(entry["top_logprobs"].size(), 3u);
    EXPECT_EQ(entry["top_logprobs"][0]["logprob"], entry["logprob"]);  // greedy
    EXPECT_EQ(entry["top_logprobs"][0]["token"], entry["token"]);
    EXPECT_TRUE(entry["bytes"].is_array());
  }
  EXPECT_TRUE(rig.ask("/v1/chat/completions", kAsk)->json()["choices"][0]["logprobs"].is_null());
}

TEST(Chat, AModelWithoutATemplateSaysSo) {
  StoryApi rig;
  rig.served.chat.reset();
  rig.served.no_chat = "the model's files hold no chat template";
  rig.api->serve(rig.served);
  EXPECT_NE(rig.refusal("/v1/chat/completions", kAsk, 400, "messages").find("no chat template"),
            std::string::npos);
}

// A mask that allows one token alone.
class Only final : public TokenMask {
 public:
  explicit Only(size_t id) : id_(id) {}
  void forbid(std::span<float> logits) override {
    for (size_t i = 0; i < logits.size(); ++i) {
      if (i != id_) logits[i] = -INFINITY;
    }
  }
  void accept(int32_t) override {}
  void rollback(int64_t) override {}

 private:
  size_t id_;
};

TEST(Chat, ResponseFormatsUseTheirMasks) {
  StoryApi rig;
  const Json object{{"response_format", {{"type", "json_object"}}}};
  EXPECT_NE(
      rig.refusal("/v1/chat/completions", with(kAsk, object), 400, "response_format").find("not served"),
      std::string::npos);
  std::string seen;
  rig.served.masks.any_object = [] { return [] { return std::make_unique<Only>(400); }; };
  rig.served.masks.schema = [&](const std::string& schema) -> MaskMaker {
    seen = schema;
    if (schema.find("pattern") != std::string::npos) throw UserError("pattern is not supported");
    return [] { return std::make_unique<Only>(401); };
  };
  rig.api->serve(rig.served);
  const auto text = [&](const Json& more) {
    return rig.ask("/v1/chat/completions", with(kAsk, with(more, {{"max_tokens", 2}})))
        ->json()["choices"][0]["message"]["content"];
  };
  const std::string first = rig.served.tokenizer().piece(400), second = rig.served.tokenizer().piece(401);
  EXPECT_EQ(text(object), first + first);
  const auto schema = [](const Json& inner) {
    return Json{
        {"response_format", {{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"schema", inner}}}}}};
  };
  EXPECT_EQ(text(schema({{"type", "string"}})), second + second);
  EXPECT_EQ(Json::parse(seen), (Json{{"type", "string"}}));
  EXPECT_NE(
      rig.refusal("/v1/chat/completions", with(kAsk, schema({{"pattern", "a+"}})), 400, "response_format")
          .find("pattern is not supported"),
      std::string::npos);
}

}  // namespace
}  // namespace fathom
