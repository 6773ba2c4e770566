// fathom's library: load a model, ask it, read the answers as they come.
//
//   fathom::Runtime runtime = fathom::Runtime::open({.model = "model.gguf", .adapter = "routers"});
//   fathom::Engine engine(runtime);
//   fathom::Request request = runtime.request("The capital of France is");
//   request.budget = 0.8f;                                       // of the blocks' multiply-adds
//   fathom::Answer answer = std::move(engine.submit(request).front());
//   while (std::optional<fathom::Token> token = answer.next()) std::fputs(token->text.c_str(), stdout);
//
// This header is all of the installed API. It needs the standard library alone. Errors are exceptions of
// types that derive from std::runtime_error; their text is one line.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fathom {

class ModelRuntime;     // infer/model_runtime.h
class EngineThread;     // infer/engine.h
class Feeder;           // infer/feeder.h
class TokenQueue;       // infer/token_queue.h
struct BatcherOptions;  // infer/batcher_options.h

using Moment = std::chrono::steady_clock::time_point;

struct SamplerConfig {
  float temperature = 0.8f;  // 0: greedy, ties to the lowest id
  int32_t top_k = 40;        // 0: all
  float top_p = 0.95f;       // 1: all
  float min_p = 0.05f;       // 0: all
  float repeat_penalty = 1.0f;
  int32_t repeat_last_n = 64;  // tokens the penalties look back on; 0: none, -1: all
  float presence_penalty = 0.0f, frequency_penalty = 0.0f;
  bool penalise_prompt = true;  // false: presence and frequency count the answer's tokens, without a window
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // token, added to its logit; −∞ forbids it
  uint64_t seed = 0;

  template <class V>
  void visit(V& v) {
    v("temperature", temperature, "0: greedy");
    v("top_k", top_k, "keep the k most likely tokens; 0: all");
    v("top_p", top_p, "keep the most likely tokens that reach this probability; 1: all");
    v("min_p", min_p, "drop tokens less likely than this share of the best; 0: none");
    v("repeat_penalty", repeat_penalty, "above 1: tokens of the window become less likely");
    v("repeat_last_n", repeat_last_n, "the window of the penalties; 0: none, -1: all");
    v("presence_penalty", presence_penalty, "taken once from the logit of every token of the window");
    v("frequency_penalty", frequency_penalty, "taken for every occurrence in the window");
    v("seed", seed, "of the random draws");
  }
};

enum class FinishReason : uint8_t {
  kStop,       // an end-of-text token or a stop string
  kLength,     // as many tokens as were asked for, or the context is full
  kCancelled,  // from outside
  kDeadline,   // its time was over
  kError,      // it could not go on
};
const char* name_of(FinishReason reason);  // "stop", …

// The tokens that may come next, as a grammar sees them. Each answer has its own mask, which one
// thread uses at a time.
class TokenMask {
 public:
  virtual ~TokenMask() = default;
  // Sets the logits (vocab) of tokens that may not come next to −∞.
  virtual void forbid(std::span<float> logits) = 0;
  virtual void accept(int32_t token) = 0;     // called with each token that is chosen
  virtual void rollback(int64_t tokens) = 0;  // takes back the newest `tokens` accepted tokens
};

// How an answer is written.
struct AnswerOptions {
  SamplerConfig sampler = {};
  int64_t max_tokens = -1;  // -1: until the context is full
  int64_t min_tokens = 0;   // before these, no end token is drawn and no stop string ends the text
  std::vector<std::string> stops = {};
  std::vector<int32_t> end_ids = {};  // tokens that end the text and are no part of it
};

// Where drafts come from: what they leave out of the model, or the text itself.
enum class DraftKind : uint8_t {
  kMethod,     // what the skipping method skips at a smaller budget
  kHarmOrder,  // the units that matter least, the same ones for every row
  kExit,       // the last blocks
  kLookup,     // what followed the same tokens earlier in the prompt or the answer; runs no part of the model
};
std::span<const std::string_view> enum_names(DraftKind);  // "method", "harm_order", "exit", "lookup"

struct DraftOptions {
  int64_t drafts = 0;  // tokens before each verification; 0: by how many earlier drafts were accepted
  // Without a kind: with `drafts` 0, the engine chooses among lookup, the method (or the harm order, where it
  // was measured) and no drafts by what has paid so far. With a number: the method where it has a calibration
  // and `budget` is below the answer's, else the harm order where it was measured, else lookup.
  std::optional<DraftKind> kind = {};
  double budget = 0.6;  // share of the blocks' multiply-adds that a draft of the model runs
  // The tokens that the model drafts from: those of the lowest ids, which are the most frequent ones where
  // the vocabulary was made by merging. 0: all. Verification always takes all.
  int64_t vocab = 0;
};

// One prompt, and how it is to be answered. `end_ids` are added to the model's end tokens; with `ignore_eos`
// they are the only ones.
struct Request : AnswerOptions {
  std::vector<int32_t> prompt = {};
  int64_t answers = 1;  // each with its own seed, made from the sampler's
  bool ignore_eos = false;
  bool context_shift = false;  // when the context is full: forget the older half and go on
  bool score_prompt = false;   // the prompt's own log-probabilities come with the answers
  int64_t log_probs = -1;  // of each token; -1: none; 0: its own; K: also those of the K most likely tokens
  bool units = false;      // each token says which units ran for it
  // Share of the blocks' multiply-adds to run; none: the engine's default.
  std::optional<float> budget = {};
  // Lossless: sampled answers are other draws of the same distribution, greedy ones the same tokens.
  std::optional<DraftOptions> speculate = {};
  std::function<std::unique_ptr<TokenMask>()> mask = {};  // makes one for each answer; none: no mask
  std::string salt = {};  // requests with different salts share no computed prefixes
  int64_t context = 0;    // prompt and answer at most; 0: the cache's
  int64_t priority = 0;   // higher goes first; that of a waiting answer rises
  std::optional<Moment> deadline = {};
};

struct TokenLogProb {
  int32_t id = 0;
  float logprob = 0;
};

// Of a text, one entry for each token.
struct LogProbs {
  // Entry i: log-probability of token i given the tokens before it. Entry 0 is 0 and has no meaning.
  std::vector<float> logprobs;
  // Best first; the first place has none. Empty when not asked for.
  std::vector<std::vector<TokenLogProb>> top;
};

// The token that ends an answer is delivered last: it has a log-probability and no text.
struct Token {
  int32_t id = 0;
  std::string text;   // whole UTF-8 characters; a later token or the end brings what is held back
  std::string bytes;  // of this token alone, which may be a part of a character
  float logprob = 0;  // of the model's own distribution, before bias, penalties and temperature
  // Best first. Where this token is the best, the first has its `logprob` bit for bit.
  std::vector<TokenLogProb> top = {};
  double depth = 0;  // layers run, as units / 2, by the row that gave it
  std::vector<uint8_t> units =
      {};             // (2L) where asked for, 1: ran; attention and FFN of layer 0, of layer 1, …
  bool ends = false;  // an end token: no part of the text
};

struct SpeculationCounts {
  int64_t drafted = 0, accepted = 0;  // tokens
  int64_t looked_up = 0;              // of those drafted
  int64_t draft_passes = 0, verify_passes = 0;
  SpeculationCounts& operator+=(const SpeculationCounts& other);
};

struct AnswerStats {
  int64_t prompt_tokens = 0;
  int64_t reused_tokens = 0;   // prompt tokens taken from a cached sequence
  int64_t prefill_tokens = 0;  // prompt tokens computed; fewer if the answer ended early
  int64_t generated = 0;       // tokens of the answer, without the one that ended it
  double depth = 0;            // mean over them
  // Of the rows that were computed for this answer, drafts included: the share of (row, unit) pairs that were
  // skipped, and the blocks' multiply-adds that ran and that a dense model runs. A row counts as reading
  // every position before it.
  double skip_ratio = 0;
  double block_madds = 0, dense_block_madds = 0;
  int64_t preemptions = 0;  // times it made room for others and was computed again
  int64_t context_shifts = 0;
  SpeculationCounts speculation = {};
  double wait_seconds = 0, prefill_seconds = 0, decode_seconds = 0;  // until admitted, first token, end
};

struct AnswerEnd {
  FinishReason reason = FinishReason::kCancelled;
  std::string text;   // what was held back
  std::string error;  // one line, when the reason is kError
  AnswerStats stats;
};

// One answer as its reader sees it. Tokens come through a bounded queue (a round of speculation may go beyond
// its bound): a reader that falls behind pauses its own answer and no other. A reader that goes away cancels.
class Answer {
 public:
  ~Answer();
  Answer(Answer&&) noexcept;
  Answer& operator=(Answer&&) noexcept;

  // Waits for the next token; nothing: the answer has ended.
  std::optional<Token> next();
  // Returns whether next() would return at once. Waits for that, but not longer than `time`.
  bool ready_within(std::chrono::milliseconds time) const;
  // `call` is called whenever there is something more to read, from the engine's thread, or at once where
  // there is something already. It must not block, nor throw.
  void on_ready(std::function<void()> call);
  bool ended() const;  // nothing more comes; what is in the queue can still be read
  // Valid after ended() or next() says that the answer ended.
  const AnswerEnd& end() const;
  // The prompt's log-probabilities, if requested; valid after next() first returned. The same for all answers
  // of a request.
  std::shared_ptr<const LogProbs> prompt_log_probs() const;
  // Ends the answer before the engine's next pass. What is in the queue can still be read.
  void cancel();

 private:
  friend Answer make_answer(std::shared_ptr<TokenQueue> queue);  // infer/token_queue.h
  explicit Answer(std::shared_ptr<TokenQueue> queue);
  std::shared_ptr<TokenQueue> queue_;
};

struct RuntimeOptions {
  std::string model;            // a file, a folder, org/name in the Hugging Face cache, or "builtin"
  std::string adapter = {};     // a folder; "": the model's own method, if it has one
  bool lora_beside = false;     // an adapter's LoRA stays beside the weights; else it is merged into them
  std::string tokenizer = {};   // a file; "": the model's own
  std::string device = "cpu";   // or "cuda", "cuda:N"
  int threads = 0;              // 0: one for each core that this process may use
  std::string weights = {};     // type that they are converted to, such as "q8_0"; "": as stored
  std::string cache_type = {};  // of keys and values; "": f16, or f32 where weights is "f32"
  int64_t context = 0;          // tokens of a sequence at most; 0: the model's
  int64_t sequences = 8;        // that the cache has room for
};

struct Message {
  std::string role, content;  // "system", "user" or "assistant"
};

// A model that is ready to run. Copies share it.
class Runtime {
 public:
  static Runtime open(const RuntimeOptions& options);

  // A request with the model's defaults for sampling.
  Request request(const std::string& prompt) const;
  Request request(const std::vector<Message>& conversation) const;  // in the model's chat format

  std::vector<int32_t> encode(const std::string& text) const;
  std::string decode(const std::vector<int32_t>& ids) const;
  int64_t context() const;  // tokens of a sequence at most
  int64_t layers() const;

 private:
  friend class Engine;
  explicit Runtime(std::shared_ptr<ModelRuntime> runtime) : runtime_(std::move(runtime)) {}
  std::shared_ptr<ModelRuntime> runtime_;
};

struct EngineOptions {
  int64_t rows = 512;          // of a pass at most; more than the cache's sequences
  int64_t waiting = 1024;      // answers beside those that have a place; more are refused with EngineBusy
  int64_t most_answers = 128;  // of one request
  int64_t tokens_ahead = 64;   // that may wait for the reader before its answer pauses
  int64_t ageing = 32;         // passes without rows after which an answer's priority rises by one
  bool keep_prefixes = true;   // what a finished answer computed stays until its place is needed
  std::optional<float> budget = {};  // of requests that name none; none: the method's own rule
};

// What was saved, each a ratio against the dense backbone on the same rows and contexts, from what the
// kernels counted, on the CPU and on CUDA alike.
struct Savings {
  double skip_ratio = 0;   // share of (row, unit) pairs skipped, over all 2L units
  double block_flops = 1;  // β: multiply-adds of the blocks
  double net_flops = 1;    // all multiply-adds, the output matrix included
  double net_bytes = 1;    // weight and cache bytes read
};

struct EngineStats {
  // Since the start.
  int64_t passes = 0, rows = 0;
  std::array<int64_t, 12> passes_by_rows{};  // of at most 1, 2, 4, … 1024 rows, and of more
  double bytes_read = 0;                     // weights and cache
  // Of all answers; a token that ends one is generated, too.
  int64_t prompt_tokens = 0, reused_tokens = 0, generated_tokens = 0;
  int64_t preemptions = 0;            // answers that made room for others, to be computed again
  SpeculationCounts speculation;      // of answers that have ended
  std::array<int64_t, 5> finished{};  // answers by FinishReason
  std::vector<int64_t> unit_rows;     // (2L): rows that ran each unit; over `rows`, its kept share
  Savings savings;
  // Now.
  int64_t running = 0, waiting = 0, paused = 0;  // answers; a paused one runs and waits for its reader
  int64_t cache_bytes = 0;                       // cache bytes in use, kept prefixes included
  int64_t pool_bytes = 0;                        // cache bytes in all
};

// Too many answers are waiting: try again later.
class EngineBusy : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Many requests at once on one model: continuous batching.
//
// One thread steps. Each step is one pass over a row of every answer that is being written and pieces of the
// prompts of those that have just come. An answer's tokens and log-probabilities are, bit for bit, those of
// the same request alone. Load, chunk sizes, priorities and a full cache change none of them.
//
// An answer may speculate (Request::speculate): its drafts and their verification are rows of the same
// passes, in the same cache. How much it drafts follows from its own history; a round that finds no room
// waits for it, or is begun again later with the same drafts.
//
// Answers wait for a place in the cache in the order of their priorities, which rise while they wait. When
// the cache is full, the last in that order gives up its place and is computed again later. An answer ends
// within one step of its cancellation or deadline, in the middle of its prompt too.
class Engine {
 public:
  explicit Engine(const Runtime& runtime, const EngineOptions& options = {});
  // Cancels what is left and waits for the thread, never for a reader: what is in the queues can still be
  // read.
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  // Returns one Answer for each of request.answers, without waiting. Throws if the request cannot be served;
  // EngineBusy if too many answers wait.
  std::vector<Answer> submit(Request request);
  // Refuses new requests and returns when all answers have ended. Readers must keep reading meanwhile.
  void drain();
  EngineStats stats() const;

 private:
  friend Engine make_engine(Feeder& feeder, BatcherOptions options);  // infer/engine.h
  explicit Engine(std::unique_ptr<EngineThread> thread);
  std::shared_ptr<ModelRuntime> runtime_;  // null: the caller's feeder
  std::unique_ptr<EngineThread> thread_;
};

}  // namespace fathom
