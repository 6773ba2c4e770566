// The API over small models, asked as a transport would ask it.
#pragma once

#include "infer/engine.h"
#include "infer/mask_without_memory_test.h"
#include "infer/model_runtime.h"
#include "infer/story_model_test.h"
#include "serve/api.h"
#include "serve/fake_reply_test.h"
#include "support/test_paths.h"

namespace fathom {

using Json = nlohmann::json;

Json with(Json body, const Json& more);  // the fields of both

extern const Json kGreedy, kEndless;  // requests: of 12 tokens, and of 200 that nothing ends

// What both rigs do with a model.
class ApiRig {
 public:
  std::vector<std::string> lines;  // of the log
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Api> api;
  ServedModel served;

  std::shared_ptr<FakeReply> begin(const std::string& path, const std::string& body,
                                   const std::string& key = "") {
    auto reply = std::make_shared<FakeReply>();
    api->handle(request(body.empty() ? "GET" : "POST", path, body, key), reply);
    api->settle();
    return reply;
  }
  std::shared_ptr<FakeReply> ask(const std::string& path, const std::string& body = "",
                                 const std::string& key = "") {
    auto reply = begin(path, body, key);
    reply->run();
    return reply;
  }
  std::shared_ptr<FakeReply> ask(const std::string& path, const Json& body, const std::string& key = "");
  Json complete_text(const Json& body);  // what /v1/completions answers, which must be 200
  // The error's text, whose form is checked.
  std::string refusal(const std::string& path, const Json& body, int status = 400,
                      const std::string& param = "");
  static HttpRequest request(const std::string& method, const std::string& path, const std::string& body,
                             const std::string& key) {
    return {.method = method,
            .path = path,
            .query = "",
            .body = body,
            .key = key,
            .arrived = std::chrono::steady_clock::now()};
  }
  void wait_until_idle() const {
    for (int i = 0; i < 600 && (engine->stats().running + engine->stats().waiting > 0); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }

 protected:
  void start(ApiOptions options, const std::string& chat_template) {
    if (options.names.empty()) options.names = {"small"};
    options.log = [this](const std::string& line) {
      const std::lock_guard lock(lines_mutex_);
      lines.push_back(line);
    };
    api = std::make_unique<Api>(std::move(options));
    complete(served, chat_template);
    api->serve(served);
  }
  // Before the model goes. Requests of clients that have left may still be with the worker.
  void end() {
    api->settle();
    engine.reset();
  }

 private:
  std::mutex lines_mutex_;  // of `lines` while several threads write them
};

// A dense model of 260,000 weights with a vocabulary of 512.
class StoryApi : public ApiRig {
 public:
  explicit StoryApi(ApiOptions options = {}, BatcherOptions batcher = {}, int64_t sequences = 4)
      : story(256, sequences) {
    engine = std::make_unique<Engine>(make_engine(story.feeder, std::move(batcher)));
    served.model = &story.model;
    served.engine = engine.get();
    served.context = story.cache.context();
    start(std::move(options), "chatml");
  }
  ~StoryApi() { end(); }
  StoryModel story;
};

// The model that ships, with its method and its table of budgets.
class BuiltinApi : public ApiRig {
 public:
  explicit BuiltinApi(ApiOptions options = {}, BatcherOptions extra = {}) : runtime(opened()) {
    runtime.use_drafts({.kind = DraftKind::kMethod});
    runtime.make_cache(-1, 4, extra.rows);
    BatcherOptions batcher = runtime.engine_options();
    batcher.waiting = extra.waiting;
    batcher.tokens_ahead = extra.tokens_ahead;
    engine = std::make_unique<Engine>(make_engine(runtime.feeder(), std::move(batcher)));
    served.model = &runtime.model();
    served.engine = engine.get();
    served.budgets = runtime.budgets();
    served.context = runtime.context();
    start(std::move(options), "chatml");
  }
  ~BuiltinApi() { end(); }
  ModelRuntime runtime;

 private:
  static ModelRuntime::Options opened() {
    ModelRuntime::Options options;
    options.source.model = FATHOM_TEST_DATA "/../../models/builtin/builtin.gguf";
    options.source.where.threads = 2;
    options.context = 512;
    return options;
  }
};

}  // namespace fathom
