#include "serve/api_rig_test.h"

#include <nlohmann/json.hpp>

namespace fathom {

const Json kGreedy{{"prompt", "The old man"}, {"max_tokens", 12}, {"temperature", 0}};
const Json kEndless{{"prompt", "Once"}, {"max_tokens", 200}, {"ignore_eos", true}, {"temperature", 0}};

Json with(Json body, const Json& more) {
  body.update(more);
  return body;
}

std::shared_ptr<FakeReply> ApiRig::ask(const std::string& path, const Json& body, const std::string& key) {
  return ask(path, body.dump(), key);
}

Json ApiRig::complete_text(const Json& body) {
  const auto reply = ask("/v1/completions", body);
  EXPECT_EQ(reply->status, 200) << reply->body;
  return reply->json();
}

std::string ApiRig::refusal(const std::string& path, const Json& body, int status, const std::string& param) {
  const auto reply = ask(path, body);
  EXPECT_EQ(reply->status, status) << reply->body;
  const Json error = reply->json().at("error");
  EXPECT_TRUE(error.at("type").is_string());
  EXPECT_TRUE(error.contains("code"));
  if (!param.empty()) {
    EXPECT_EQ(error.at("param"), param) << reply->body;
  }
  return error.at("message");
}

}  // namespace fathom
