// fathom score: the log-probability of every token of a text.
#include "infer/score.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/progress.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/savings_line.h"
#include "cli/verbs.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

struct ScoreChoice {
  ModelOptions model;
  std::string prompt, file, ids;
  int64_t top = 0, chunk = 0, prompt_tokens = 0, window = 0;
};

bool parse(Args& args, ScoreChoice& o, const Arguments& arguments) {
  args.text("-f,--file", o.file, "FILE", "The text; -: from stdin");
  args.text("-p,--prompt", o.prompt, "TEXT", "The text itself");
  args.text("--ids", o.ids, "FILE", "The tokens, as a JSON list of ids");
  args.integer("--top", o.top, "Also the K most likely tokens of each place", 0, 1000);
  args.integer("--chunk", o.chunk,
               "Tokens fed to the cache at a time (1: as decode does; 0: as many as keep the logits small)",
               0, INT32_MAX);
  args.integer("--prompt-tokens", o.prompt_tokens,
               "The first P tokens are context and do not count in nll and perplexity", 0, INT32_MAX);
  args.integer(
      "--window", o.window,
      "Cut the text into windows of N tokens, each read for itself: for texts longer than the context. "
      "A window begins with the last token of the one before; 0: the text is one",
      0, INT32_MAX);
  add_model_options(args, o.model, true);
  if (!args.parse(arguments)) return false;
  check_model_options(args, o.model);
  if (args.given("--file") + args.given("--prompt") + args.given("--ids") != 1) {
    throw UsageError("score: give the text with one of --file, -p and --ids");
  }
  if (o.window == 1) throw UsageError("--window must be at least 2: nothing predicts a window's first token");
  return true;
}

Json top_json(const ScoreResult& result) {
  Json all = Json::array();
  for (size_t i = 0; i < result.top.size(); ++i) {
    Json place = Json::array();
    for (const TokenLogProb& token : result.top[i])
      place.push_back({{"id", token.id}, {"logprob", token.logprob}});
    all.push_back(i == 0 ? Json() : place);
  }
  return all;
}

std::string token_text(const Model& model, int32_t id) {
  return model.tokenizer ? printable(model.tokenizer->piece(id, true)) : "";
}

void print_table(const Model& model, const std::vector<int32_t>& ids, const ScoreResult& result) {
  std::string table;
  for (size_t i = 0; i < ids.size(); ++i) {
    table += fmt::format("{:>8}  {:>10}  '{}'", ids[i],
                         i == 0 ? "-" : fmt::format("{:.5f}", result.logprobs[i]), token_text(model, ids[i]));
    for (size_t k = 0; i > 0 && i < result.top.size() && k < result.top[i].size(); ++k) {
      table += fmt::format("  {}'{}' {:.3f}", k == 0 ? "best: " : "", token_text(model, result.top[i][k].id),
                           result.top[i][k].logprob);
    }
    table += "\n";
  }
  print(table);
}

std::vector<int32_t> read_tokens(const Args& args, const ScoreChoice& o, const Session& session) {
  if (args.given("--ids")) return read_ids(o.ids, session.model().config.vocab);
  const std::string text = args.given("--file") ? read_input(o.file) : o.prompt;
  warn_about_bytes(text);
  return session.tokenizer().encode(text);
}

void check_length(const ScoreChoice& o, const Session& session, int64_t count) {
  if (o.window > session.context())
    throw UsageError(
        fmt::format("--window must fit the context of {} tokens, got {}", session.context(), o.window));
  if (o.window == 0 && count > session.context())
    fail(
        "score: the text has {} tokens, the context {}: score it in pieces with --window {}, shorten it or "
        "raise -c",
        count, session.context(), session.context());
  if (count < 2)
    fail("score: a text needs at least 2 tokens, since nothing predicts the first; got {}", count);
  if (o.prompt_tokens >= count) {
    throw UsageError(
        fmt::format("--prompt-tokens must be below the text's {} tokens, got {}", count, o.prompt_tokens));
  }
}

// Tokens of one pass; 0: as is best.
int64_t chunk_of(const Args& args, const ScoreChoice& o, const Session& session, int64_t count) {
  const bool whole = session.method() && session.method()->needs_whole_prompt();
  if (whole && args.given("--chunk"))
    throw UsageError(fmt::format("--chunk: {} decides from the whole text, which cannot be fed in pieces",
                                 session.method()->name()));
  return whole ? count : o.chunk;
}

struct Scored {
  ScoreResult result;
  double seconds = 0;
};

// The windows of a text, one after the other, as one result.
ScoreResult score_windows(Feeder& feeder, std::span<const int32_t> ids, const ScoreOptions& options,
                          size_t window) {
  ScoreResult all;
  for (size_t begin = 0; begin + 1 < ids.size(); begin += window - 1) {
    ScoreResult part = score(feeder, ids.subspan(begin, std::min(window, ids.size() - begin)), options);
    if (part.cancelled) return part;
    const ptrdiff_t first = begin == 0 ? 0 : 1;  // scored in the window before
    all.logprobs.insert(all.logprobs.end(), part.logprobs.begin() + first, part.logprobs.end());
    if (!part.top.empty()) all.top.insert(all.top.end(), part.top.begin() + first, part.top.end());
  }
  return all;
}

Scored score_timed(Session& session, const std::vector<int32_t>& ids, int64_t chunk, const ScoreChoice& o) {
  Progress progress("scoring", std::ssize(ids));
  ScoreOptions options;
  options.chunk = chunk;
  options.top = o.top;
  options.cancel = &interrupted();
  options.on_progress = [&](int64_t done) { progress.add(done); };
  const auto start = std::chrono::steady_clock::now();
  Scored scored{o.window > 0 ? score_windows(session.feeder(), ids, options, static_cast<size_t>(o.window))
                             : score(session.feeder(), ids, options)};
  scored.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return scored;
}

void report(const ScoreChoice& o, Session& session, const std::vector<int32_t>& ids, const Scored& scored) {
  const auto count = static_cast<int64_t>(ids.size());
  const double nll = scored.result.mean_nll(o.prompt_tokens);
  const int64_t counted = count - std::max<int64_t>(1, o.prompt_tokens);
  if (!o.model.json) {
    print_table(session.model(), ids, scored.result);
    return print(fmt::format("{} tokens, {} scored: nll {:.5f}, perplexity {:.4f}, {:.2f} s\n", count,
                             counted, nll, std::exp(nll), scored.seconds));
  }
  Json out;
  out["ids"] = ids;
  out["logprobs"] = scored.result.logprobs;
  out["logprobs"][0] = nullptr;
  if (o.top > 0) out["top"] = top_json(scored.result);
  out["scored_tokens"] = counted;
  out["nll"] = nll;
  out["perplexity"] = std::exp(nll);
  out["seconds"] = scored.seconds;
  out["tokens_per_s"] = static_cast<double>(count) / scored.seconds;
  add_savings(out, session.feeder().savings());
  session.feeder().settle(0);
  add_cache_bytes(out, session.feeder().cache());
  print_json(out);
}

}  // namespace

int run_score(const Arguments& arguments) {
  Args args("score", "Gives the log-probability of every token of a text, and its perplexity.",
            "fathom score -m builtin -p \"The old man looked at the sea.\"\n"
            "  fathom score -m model.gguf --file text.txt --dtype f32 --json");
  ScoreChoice o;
  if (!parse(args, o, arguments)) return 0;
  Session session(o.model);
  const std::vector<int32_t> ids = read_tokens(args, o, session);
  const auto count = static_cast<int64_t>(ids.size());
  check_length(o, session, count);
  const int64_t chunk = chunk_of(args, o, session, count);
  const int64_t longest = o.window > 0 ? std::min(o.window, count) : count;
  session.make_cache(longest);
  log_rule(session);
  const Scored scored = score_timed(session, ids, std::min(chunk, longest), o);
  if (scored.result.cancelled) return kInterruptedExit;
  log_savings(session, session.feeder().books(), asked_budget(session), (count + longest - 1) / longest);
  report(o, session, ids, scored);
  return 0;
}

}  // namespace fathom
