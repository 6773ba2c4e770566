// One request that is being answered: reads its answers as they come and writes the reply.
//
// Everything but start(), cut() and what the engine calls runs on the connection's thread. start() runs on
// the API's and changes nothing that the connection's thread reads; the engine's thread only posts there.
// While the client does not take what was written, the answers are not read, and so pause.
#pragma once

#include <atomic>
#include <memory>

#include "serve/api_error.h"
#include "serve/api_state.h"
#include "serve/http.h"
#include "serve/reply_format.h"

namespace fathom {

struct ExchangePlan {
  std::shared_ptr<const ServedModel> served;
  std::unique_ptr<ReplyFormat> format;
  bool stream = false, include_usage = false;
  int64_t answers = 1;  // of each prompt
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::string> echoes;  // the prompts' texts where they are echoed, else none
  Usage usage;                      // with the prompts' tokens and the budget
  RequestRecord record;
  Moment arrived;
};

class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  // `answers`: those of the first prompt, of the second, …
  Exchange(std::shared_ptr<ApiState> state, std::shared_ptr<HttpReply> reply, ExchangePlan plan,
           std::vector<Answer> answers);

  void start();
  void cut();  // ends the answers; the client is told

 private:
  struct Choice {
    Answer answer;
    AnswerPart part;  // what is not written yet; of a whole reply, all
    size_t prompt = 0;
    std::optional<Moment> last_token = {};
    bool behind = false;  // tokens wait because the client does not take what was written
    bool ended = false;
  };

  void schedule();
  void pump();
  bool blocked() const;
  void read(Choice& choice);
  void open(Choice& choice);
  void take(Choice& choice, Token token);
  void count(Choice& choice, const Token& token);
  void end(Choice& choice);
  void emit(Choice& choice);
  void begin();
  void flush();
  std::string last_bytes();
  void finish();
  void fail(const ApiError& error);
  void client_gone();
  void close(int status, const std::string& reason);
  double seconds_since_arrival() const;
  bool keeps_tokens() const;

  const std::shared_ptr<ApiState> state_;
  const std::shared_ptr<HttpReply> reply_;
  ExchangePlan plan_;
  std::vector<Choice> choices_;
  std::string out_;  // events that are not written yet
  double depths_ = 0;
  int64_t text_tokens_ = 0;  // tokens without those that ended an answer
  std::atomic<bool> scheduled_ = false;
  std::atomic<bool> over_ = false;
  std::atomic<bool> cut_ = false;
};

}  // namespace fathom
