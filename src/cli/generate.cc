// fathom generate: continues a prompt, streaming.
#include "infer/generate.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/fields.h"
#include "base/format.h"
#include "base/log.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/session.h"
#include "cli/verbs.h"

namespace fathom {
namespace {

struct Options {
  ModelOptions model;
  SamplingOptions sampling;
  std::string prompt, file, chat_template, system, speculate;
  std::vector<std::string> stops;
  int64_t tokens = 256;
  double draft_budget = 0;
  bool show_depth = false, ignore_eos = false;
};

bool parse(Args& args, Options& o, const Arguments& arguments) {
  args.text("-p,--prompt", o.prompt, "TEXT", "The prompt");
  args.text("-f,--file", o.file, "FILE", "The prompt from a file; -: from stdin");
  args.integer("-n,--tokens", o.tokens,
               "At most so many new tokens; -1: until the text ends or the context is full", -1, INT32_MAX);
  args.texts("--stop", o.stops, "TEXT", "End where this text would come; may be repeated");
  args.flag("--ignore-eos", o.ignore_eos, "Go on after the model's end-of-text token");
  args.text("--chat-template", o.chat_template, "NAME",
            "Put the prompt as a user's message into this format: auto (the model's own), " +
                ChatTemplate::known_names());
  args.text("--system", o.system, "TEXT", "System message, with --chat-template");
  args.flag("--show-depth", o.show_depth, "Shade every token by the depth it ran");
  args.text("--speculate", o.speculate, "K|auto", "Draft with a part of the model, verify with all of it");
  args.number("--draft-budget", o.draft_budget, "Budget of the draft");
  add_model_options(args, o.model, true);
  add_sampling_options(args, o.sampling);
  if (!args.parse(arguments)) return false;
  check_model_options(args, o.model);
  if (args.given("--prompt") == args.given("--file"))
    throw UsageError("generate: give the prompt with either -p or -f");
  if (!o.speculate.empty() || args.given("--draft-budget")) {
    throw UsageError(
        "--speculate drafts with a part of the model: it needs a skipping method, and this is a dense model");
  }
  if (!o.system.empty() && o.chat_template.empty())
    throw UsageError("--system goes with --chat-template, which was not given");
  for (const std::string& stop : o.stops) {
    if (stop.empty()) throw UsageError("--stop must not be empty");
  }
  return true;
}

std::vector<int32_t> prompt_ids(const Session& session, const Options& o, const std::string& text) {
  const Tokenizer& tokenizer = session.tokenizer();
  if (o.chat_template.empty()) return tokenizer.encode(text);
  std::vector<ChatMessage> messages;
  if (!o.system.empty()) messages.push_back({"system", o.system});
  messages.push_back({"user", text});
  return encode_chat(tokenizer, chat_template_of(session.model(), o.chat_template), messages);
}

void print_result(const GenerateResult& r, const Options& o, SamplerConfig sampler, Session& session) {
  const double prefill = r.prefill_tokens_per_s(), decode = r.decode_tokens_per_s();
  if (!o.model.json) {
    if (r.text.empty() || r.text.back() != '\n') print("\n");
    log_info(fmt::format("{} prompt tokens at {:.1f}/s, {} new tokens at {:.1f}/s; loaded in {:.2f} s",
                         r.prompt_tokens, prefill, r.ids.size(), decode, session.load_seconds()));
    return;
  }
  nlohmann::ordered_json out;
  out["text"] = r.text;
  out["ids"] = r.ids;
  out["prompt_tokens"] = r.prompt_tokens;
  out["generated_tokens"] = r.ids.size();
  out["finish_reason"] = name_of(r.finish);
  out["prefill_tokens_per_s"] = prefill;
  out["decode_tokens_per_s"] = decode;
  out["load_seconds"] = session.load_seconds();
  if (r.context_shifts > 0) out["context_shifts"] = r.context_shifts;
  add_savings(out, session.feeder().savings());
  session.feeder().settle(0);
  add_cache_bytes(out, session.feeder().cache());
  out["depth"] = r.depth;
  out["sampler"] = nlohmann::ordered_json::parse(fields_to_json(fields_of(sampler)));
  print_json(out);
}

}  // namespace

int run_generate(const Arguments& arguments) {
  Args args("generate", "Continues a prompt.",
            "fathom generate -m builtin -p \"Once upon a time\" -n 100 --temp 0\n"
            "  fathom generate -m SmolLM2-135M-Instruct.Q4_1.gguf --chat-template auto -p \"Why is the sky "
            "blue?\"");
  Options o;
  if (!parse(args, o, arguments)) return 0;
  const std::string text = args.given("--file") ? read_input(o.file) : o.prompt;

  Session session(o.model);
  GenerateOptions options;
  options.sampler = sampler_config(args, o.sampling, session.model().generation);
  options.max_tokens = o.tokens;
  options.stops = o.stops;
  if (!o.ignore_eos) options.end_ids = end_token_ids(session.model());
  options.context_shift = o.model.context_shift;
  options.cancel = &interrupted();
  const double layers = static_cast<double>(session.model().config.layers);
  if (!o.model.json) {
    options.on_text = [&](const TextPiece& piece) {
      const std::string shown = for_terminal(piece.text);
      print(o.show_depth ? shaded(shown, piece.depth / layers) : shown);
    };
  }
  const std::vector<int32_t> prompt = prompt_ids(session, o, text);
  const auto length = static_cast<int64_t>(prompt.size());
  if (length > session.context()) {
    fail("the prompt has {} tokens, the context {}: shorten the prompt or raise -c", length,
         session.context());
  }
  session.make_cache(o.tokens < 0 ? -1 : length + o.tokens);
  if (session.method() && session.method()->needs_whole_prompt()) options.chunk = length;
  Generator generator(session.feeder());
  const GenerateResult result = generator.run(prompt, options);
  print_result(result, o, options.sampler, session);
  if (o.show_depth && !o.model.json) log_info(fmt::format("shades: dark 0 layers, light all {:g}", layers));
  return result.finish == FinishReason::kCancelled ? kInterruptedExit : 0;
}

}  // namespace fathom
