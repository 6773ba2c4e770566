// OpenAI's API over the engine: paths, and what each answers. No sockets here.
#pragma once

#include "serve/api_error.h"
#include "serve/api_state.h"
#include "serve/api_worker.h"
#include "serve/http.h"

namespace fathom {

class Api {
 public:
  explicit Api(ApiOptions options);
  ~Api();  // the transport has stopped: nothing is asked any more

  // Answers a request: an HttpHandler. Never waits, never throws. What has a body is parsed by the worker;
  // where too much waits for that, the reply is 429.
  void handle(HttpRequest request, const std::shared_ptr<HttpReply>& reply);
  // Counts a request that the transport has refused, and logs it where the log has room: an HttpRefused.
  void refused(const HttpRefusal& refusal);

  // The model is loaded. What it points to outlives every request.
  void serve(ServedModel served);
  void drain();            // new requests are 503 from now on
  void cut();              // ends those that are left; their clients are told
  int64_t active() const;  // requests that are being parsed or answered
  void settle() const;     // waits until every request that has come is parsed

 private:
  void guard(const HttpRequest& request, HttpReply& reply, const std::function<void()>& call);
  void answer(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void answer_plainly(const HttpRequest& request, HttpReply& reply, const std::string& route);
  void generate(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply, bool chat);
  void send(const HttpRequest& request, HttpReply& reply, std::string type, std::string body);
  void send_error(const HttpRequest& request, HttpReply& reply, const ApiError& error,
                  HttpHeaders headers = {});
  RequestRecord record_of(const HttpRequest& request, const char* prefix) const;
  std::shared_ptr<const ServedModel> ready_model() const;

  const std::shared_ptr<ApiState> state_;
  ApiWorker worker_;
};

}  // namespace fathom
