// Requests through the whole API: routes, bodies, the tokenizer, a small engine that answers, replies. The
// first byte chooses the path and the method; the rest is the body.
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>

#include "infer/engine.h"
#include "infer/feeder.h"
#include "serve/api.h"
#include "serve/json_mask.h"
#include "text/llama2c_tokenizer.h"
#include "train/initial_model.h"

namespace {

using namespace fathom;

// Collects a reply, and runs what is posted on the caller's thread.
class CollectedReply final : public HttpReply {
 public:
  int status = 0;
  std::string type, body;

  void send(int code, std::string content_type, std::string text, HttpHeaders) override {
    begin(code, std::move(content_type), "", {});
    body = std::move(text);
    end();
  }
  void begin(int code, std::string content_type, std::string, HttpHeaders) override {
    if (status != 0) __builtin_trap();
    status = code;
    type = std::move(content_type);
  }
  void write(std::string piece) override { body += piece; }
  void end(bool = false) override { whole_ = true; }
  void abort() override { whole_ = true; }
  std::size_t unsent() const override { return 0; }
  void on_sent(std::function<void()>) override {}
  void on_gone(std::function<void()>) override {}
  void post(std::function<void()> call) override {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(call));
    came_.notify_all();
  }
  void run() {
    while (!whole_) {
      std::unique_lock lock(mutex_);
      came_.wait(lock, [&] { return !posted_.empty(); });
      const std::function<void()> call = std::move(posted_.front());
      posted_.pop_front();
      lock.unlock();
      call();
    }
  }

 private:
  bool whole_ = false;
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<std::function<void()>> posted_;
};

// <unk>, <s>, </s> and the 256 bytes, as llama2.c's file has them.
std::shared_ptr<const Tokenizer> byte_tokenizer() {
  std::string file(4, '\0');
  const auto add = [&](const std::string& token) {
    const float score = 0;
    const auto size = static_cast<int32_t>(token.size());
    file.append(reinterpret_cast<const char*>(&score), 4).append(reinterpret_cast<const char*>(&size), 4);
    file += token;
  };
  for (const char* token : {"<unk>", "<s>", "</s>"}) add(token);
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", byte);
    add(text);
  }
  const int32_t longest = 6;
  std::memcpy(file.data(), &longest, 4);
  return llama2c_tokenizer(file, 259, "fuzz");
}

ModelConfig small_config() {
  ModelConfig config;
  config.architecture = "llama";
  config.vocab = 259;
  config.layers = 1;
  config.width = config.ffn_width = 8;
  config.heads = config.kv_heads = 1;
  config.head_dim = 8;
  config.context = 64;
  config.attention_scale = 0.35f;
  config.windows = {0};
  config.bos = 1;
  config.eos = {2};
  return config;
}

struct Server {
  Context ctx{{.device = Device::kCpu, .threads = 1}};
  Model model = initial_model(ctx, small_config(), {}, 1);
  DensePolicy policy;
  PolicyState state;
  KvCache cache{ctx, model.config, {.sequences = 4}};
  Feeder feeder{ctx, model, cache, policy, state};
  Engine engine = make_engine(feeder, BatcherOptions{});
  Api api{options()};

  Server() {
    model.tokenizer = byte_tokenizer();
    ServedModel served;
    served.model = &model;
    served.engine = &engine;
    served.context = 64;
    const auto masks = std::make_shared<const JsonMasks>(*model.tokenizer, std::vector<int32_t>{2});
    served.masks = {.any_object = [masks] { return masks->any_object(); },
                    .schema = [masks](const std::string& schema) { return masks->schema(schema); }};
    complete(served, "chatml");
    api.serve(std::move(served));
  }
  static ApiOptions options() {
    ApiOptions made;
    made.names = {"m"};
    made.limits.choices = 4;
    made.limits.tokens = 4096;
    made.log = [](const std::string& line) {
      if (line.find('\n') != std::string::npos) __builtin_trap();
    };
    return made;
  }
};

void check(const CollectedReply& reply) {
  if (reply.status < 200 || reply.status > 599 || reply.status == 500) __builtin_trap();
  if (reply.type == "application/json" && !nlohmann::json::accept(reply.body)) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Server* const server = new Server;  // its threads outlive main
  static constexpr const char* kPaths[] = {"/v1/completions", "/v1/chat/completions", "/tokenize",
                                           "/detokenize",     "/tokenizer_info",      "/v1/models/",
                                           "/nothing"};
  if (size == 0) return 0;
  const size_t path = (data[0] & 0x0F) % std::size(kPaths);
  HttpRequest request;
  request.body.assign(reinterpret_cast<const char*>(data) + 1, size - 1);
  request.path = kPaths[path];
  if (path == 5) request.path += request.body.substr(0, 64);
  request.method = path < 4 || (data[0] & 0x80) ? "POST" : "GET";
  request.arrived = std::chrono::steady_clock::now();
  const auto reply = std::make_shared<CollectedReply>();
  server->api.handle(std::move(request), reply);
  server->api.settle();
  reply->run();
  check(*reply);
  return 0;
}
