// fathom generate: continues a prompt, streaming.
#include "infer/generate.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/fields.h"
#include "base/format.h"
#include "base/log.h"
#include "cli/generate_options.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/prefill_bar.h"
#include "cli/savings_line.h"
#include "cli/verbs.h"
#include "infer/writer.h"
#include "serve/json_mask.h"

namespace fathom {
namespace {

bool parse(Args& args, GenerateChoice& o, const Arguments& arguments) {
  args.text("-p,--prompt", o.prompt, "TEXT", "The prompt");
  args.text("-f,--file", o.file, "FILE", "The prompt from a file; -: from stdin");
  args.integer("-n,--tokens", o.tokens, "Most new tokens; -1: until the text ends or the context is full", -1,
               INT32_MAX);
  args.texts("--stop", o.stops, "TEXT", "End where this text would come; may be repeated");
  args.flag("--ignore-eos", o.ignore_eos, "Go on after the model's end-of-text token");
  args.flag("--json-object", o.json_object, "The text is a JSON object");
  args.text("--json-schema", o.json_schema, "FILE", "The text is JSON, a value of this JSON Schema");
  args.text("--chat-template", o.chat_template, "NAME",
            "Put the prompt as a user's message into this format: auto (the model's own), " +
                ChatTemplate::known_names());
  args.text("--system", o.system, "TEXT", "System message, with --chat-template");
  add_shade_options(args, o.shades);
  add_draft_options(args, o.drafts);
  add_model_options(args, o.model, true);
  add_sampling_options(args, o.sampling);
  add_batch_options(args, o.batch);
  if (!args.parse(arguments)) return false;
  check_model_options(args, o.model);
  check_batch_options(args, o.batch);
  if (!o.batch.on() && args.given("--prompt") == args.given("--file"))
    throw UsageError("generate: give the prompt with either -p or -f");
  check_draft_options(args, o.drafts);
  check_shade_options(args, o.shades);
  if (!o.system.empty() && o.chat_template.empty())
    throw UsageError("--system goes with --chat-template, which was not given");
  if (o.json_object && args.given("--json-schema"))
    throw UsageError("--json-object and --json-schema go one without the other");
  if (o.ignore_eos && (o.json_object || args.given("--json-schema")))
    throw UsageError("--ignore-eos does not go with --json-object and --json-schema: JSON has an end");
  for (const std::string& stop : o.stops) {
    if (stop.empty()) throw UsageError("--stop must not be empty");
  }
  return true;
}

std::vector<int32_t> prompt_ids(const Session& session, const GenerateChoice& o, const std::string& text) {
  const Tokenizer& tokenizer = session.tokenizer();
  if (o.chat_template.empty()) return tokenizer.encode(text);
  std::vector<ChatMessage> messages;
  if (!o.system.empty()) messages.push_back({"system", o.system});
  messages.push_back({"user", text});
  return encode_chat(tokenizer, chat_template_option(session, o.chat_template), messages);
}

// The text as it came, each stretch with the depth that --show-depth would shade it by.
using Pieces = std::vector<std::pair<std::string, double>>;

nlohmann::ordered_json to_json(const Pieces& pieces) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const auto& [text, depth] : pieces) out.push_back({{"text", text}, {"depth", depth}});
  return out;
}

// A bar while a long prompt is read, then the text, shaded where that is asked for; or nothing, and the
// pieces for --json.
class Screen {
 public:
  Screen(const GenerateChoice& o, int64_t layers, int64_t prompt)
      : json_(o.model.json), shades_(!json_ && o.shades.shades()), layers_(layers), bar_(prompt) {}

  void read(int64_t rows) { bar_.read(rows); }
  void show(const TextPiece& piece) {
    end();
    if (json_) {
      pieces_.emplace_back(piece.text, piece.depth);
      return;
    }
    const std::string shown = for_terminal(piece.text);
    print(shades_ ? shaded(shown, piece.depth, layers_) : shown);
  }
  void end() { bar_.end(); }
  void legend() const {
    if (shades_) print(depth_legend(layers_));
  }
  const Pieces& pieces() const { return pieces_; }

 private:
  bool json_, shades_;
  int64_t layers_;
  PrefillBar bar_;
  Pieces pieces_;
};

void print_result(const GenerateResult& r, const GenerateChoice& o, const Pieces& pieces,
                  SamplerConfig sampler, Session& session) {
  const double prefill = r.prefill_tokens_per_s(), decode = r.decode_tokens_per_s();
  if (!o.model.json) {
    if (r.text.empty() || r.text.back() != '\n') print("\n");
    const int64_t read = r.stats.prefill_tokens + r.stats.reused_tokens;
    const std::string of_all =
        read < r.stats.prompt_tokens ? fmt::format(" of {}", r.stats.prompt_tokens) : "";
    log_info(fmt::format("{}{} prompt tokens at {:.1f}/s, {} new tokens at {:.1f}/s; loaded in {:.2f} s",
                         read, of_all, prefill, r.ids.size(), decode, session.load_seconds()));
    log_drafts(o.drafts, r);
    if (o.shades.on) log_depth(r.depth, session.model().config.layers);
    return;
  }
  nlohmann::ordered_json out;
  out["text"] = r.text;
  out["ids"] = r.ids;
  out["prompt_tokens"] = r.stats.prompt_tokens;
  out["generated_tokens"] = r.ids.size();
  out["finish_reason"] = name_of(r.finish);
  out["prefill_tokens_per_s"] = prefill;
  out["decode_tokens_per_s"] = decode;
  out["load_seconds"] = session.load_seconds();
  if (r.stats.context_shifts > 0) out["context_shifts"] = r.stats.context_shifts;
  if (!o.drafts.speculate.empty()) {
    out["drafted"] = r.stats.speculation.drafted;
    out["accepted"] = r.stats.speculation.accepted;
    out["looked_up"] = r.stats.speculation.looked_up;
    out["draft_passes"] = r.stats.speculation.draft_passes;
    out["verify_passes"] = r.stats.speculation.verify_passes;
  }
  add_savings(out, session.feeder().savings());
  session.feeder().settle(0);
  add_cache_bytes(out, session.feeder().cache());
  out["depth"] = r.depth;
  out["pieces"] = to_json(pieces);
  out["sampler"] = nlohmann::ordered_json::parse(fields_to_json(fields_of(sampler)));
  print_json(out);
}

}  // namespace

std::function<std::unique_ptr<TokenMask>()> json_mask(const Session& session, const GenerateChoice& o) {
  if (!o.json_object && o.json_schema.empty()) return {};
  const std::string schema = o.json_object ? "" : read_input(o.json_schema);
  const JsonMasks masks(session.tokenizer(), end_token_ids(session.model()));
  return o.json_object ? masks.any_object() : masks.schema(schema);
}

int run_generate(const Arguments& arguments) {
  Args args("generate", "Continues a prompt.",
            "fathom generate -m builtin -p \"The old man\" -n 100 --temp 0\n"
            "  fathom generate -m SmolLM2-135M-Instruct.Q4_1.gguf --chat-template auto -p \"Why is the sky "
            "blue?\"\n"
            "  fathom generate -m builtin --batch prompts.jsonl -o answers.jsonl --parallel 32");
  GenerateChoice o;
  if (!parse(args, o, arguments)) return 0;
  if (o.batch.on()) return run_generate_batch(args, o);
  const std::string text = args.given("--file") ? read_input(o.file) : o.prompt;

  warn_about_bytes(text);
  Session session(o.model);
  GenerateOptions options;
  options.sampler = sampler_config(args, o.sampling, session.model().generation);
  options.max_tokens = o.tokens;
  options.stops = o.stops;
  options.ignore_eos = o.ignore_eos;
  options.context_shift = o.model.context_shift;
  options.mask = json_mask(session, o);
  options.cancel = &interrupted();
  const std::vector<int32_t> prompt = prompt_ids(session, o, text);
  const auto length = static_cast<int64_t>(prompt.size());
  if (length > session.context()) {
    fail("the prompt has {} tokens, the context {}: shorten the prompt or raise -c", length,
         session.context());
  }
  try {
    options.speculate = use_drafts(session, o.drafts);
  } catch (const PrepareCancelled&) {
    return kInterruptedExit;
  }
  session.make_cache(o.tokens < 0 ? -1 : length + o.tokens, 1, EngineOptions().rows);
  log_rule(session);
  Screen screen(o, session.model().config.layers, length);
  options.on_prefill = [&](int64_t rows) { screen.read(rows); };
  options.on_text = [&](const TextPiece& piece) { screen.show(piece); };
  BatcherOptions how = session.engine_options();
  how.records = o.shades.on || o.model.json || session.drafts_by_model();
  Generator generator(session.feeder(), how);
  const GenerateResult result = generator.run(prompt, options);
  screen.end();
  print_result(result, o, screen.pieces(), options.sampler, session);
  log_savings(session, session.feeder().books(), asked_budget(session), 1, !options.speculate);
  screen.legend();
  return result.finish == FinishReason::kCancelled ? kInterruptedExit : 0;
}

}  // namespace fathom
