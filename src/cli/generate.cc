// fathom generate: continues a prompt, streaming.
#include "infer/generate.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/fields.h"
#include "base/format.h"
#include "base/log.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/session.h"
#include "cli/verbs.h"

namespace fathom {
namespace {

struct Options {
  ModelOptions model;
  SamplingOptions sampling;
  std::string prompt, file, chat_template, system, speculate, draft, color = "auto";
  std::vector<std::string> stops;
  int64_t tokens = 256;
  double draft_budget = 0.6;
  bool show_depth = false, ignore_eos = false;
};

void check_drafts(const Args& args, const Options& o) {
  for (const char* option : {"--draft", "--draft-budget"}) {
    if (args.given(option) && o.speculate.empty())
      throw UsageError(fmt::format("{} goes with --speculate, which was not given", option));
  }
  if (!o.speculate.empty() && o.speculate != "auto")
    parse_integer("--speculate", o.speculate, 1, kMostDrafts);
  if (!(o.draft_budget > 0 && o.draft_budget < 1))
    throw UsageError(fmt::format("--draft-budget must be above 0 and below 1, got {:g}", o.draft_budget));
}

bool parse(Args& args, Options& o, const Arguments& arguments) {
  args.text("-p,--prompt", o.prompt, "TEXT", "The prompt");
  args.text("-f,--file", o.file, "FILE", "The prompt from a file; -: from stdin");
  args.integer("-n,--tokens", o.tokens, "Most new tokens; -1: until the text ends or the context is full", -1,
               INT32_MAX);
  args.texts("--stop", o.stops, "TEXT", "End where this text would come; may be repeated");
  args.flag("--ignore-eos", o.ignore_eos, "Go on after the model's end-of-text token");
  args.text("--chat-template", o.chat_template, "NAME",
            "Put the prompt as a user's message into this format: auto (the model's own), " +
                ChatTemplate::known_names());
  args.text("--system", o.system, "TEXT", "System message, with --chat-template");
  args.flag("--show-depth", o.show_depth, "Shade every token by the layers that ran to give it");
  args.choice("--color", o.color, {"auto", "always", "never"},
              "The shades of --show-depth; auto: on a terminal");
  args.text(
      "--speculate", o.speculate, "K|auto",
      fmt::format("Draft K tokens (at most {}) with a part of the model, verify them in one pass: the same "
                  "text, sooner where the drafts are good; auto: as many as pay, or none",
                  kMostDrafts));
  args.choice(
      "--draft", o.draft, {"method", "harm_order", "exit"},
      "What makes the drafts. method: the skipping method at a smaller budget, the default where it has a "
      "calibration table; harm_order: the units that matter most; exit: the first blocks");
  args.number("--draft-budget", o.draft_budget, "Share of the blocks' multiply-adds that a draft runs");
  add_model_options(args, o.model, true);
  add_sampling_options(args, o.sampling);
  if (!args.parse(arguments)) return false;
  check_model_options(args, o.model);
  if (args.given("--prompt") == args.given("--file"))
    throw UsageError("generate: give the prompt with either -p or -f");
  check_drafts(args, o);
  if (args.given("--color") && !o.show_depth)
    throw UsageError("--color goes with --show-depth, which was not given");
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
  return encode_chat(tokenizer, chat_template_option(session, o.chat_template), messages);
}

DraftOptions draft_options(const Options& o) {
  DraftOptions drafts;
  drafts.budget = o.draft_budget;
  if (o.speculate != "auto") drafts.drafts = parse_integer("--speculate", o.speculate, 1, kMostDrafts);
  const std::span<const std::string_view> names = enum_names(DraftKind{});
  if (!o.draft.empty())
    drafts.kind = static_cast<DraftKind>(std::find(names.begin(), names.end(), o.draft) - names.begin());
  return drafts;
}

void log_depth(const std::vector<double>& depth, int64_t layers) {
  if (depth.empty()) return;
  const auto [least, most] = std::minmax_element(depth.begin(), depth.end());
  const double mean = std::accumulate(depth.begin(), depth.end(), 0.0) / static_cast<double>(depth.size());
  log_info(fmt::format("layers run for a new token: {:.1f} of {} on average, {:g} at least, {:g} at most",
                       mean, layers, *least, *most));
}

// The text as it came, each stretch with the depth that --show-depth would shade it by.
using Pieces = std::vector<std::pair<std::string, double>>;

nlohmann::ordered_json to_json(const Pieces& pieces) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const auto& [text, depth] : pieces) out.push_back({{"text", text}, {"depth", depth}});
  return out;
}

void print_result(const GenerateResult& r, const Options& o, const Pieces& pieces, SamplerConfig sampler,
                  Session& session) {
  const double prefill = r.prefill_tokens_per_s(), decode = r.decode_tokens_per_s();
  if (!o.model.json) {
    if (r.text.empty() || r.text.back() != '\n') print("\n");
    log_info(fmt::format("{} prompt tokens at {:.1f}/s, {} new tokens at {:.1f}/s; loaded in {:.2f} s",
                         r.stats.prompt_tokens, prefill, r.ids.size(), decode, session.load_seconds()));
    const SpeculationCounts& s = r.stats.speculation;
    if (!o.speculate.empty())
      log_info(fmt::format("{} of {} drafted tokens stayed; {} drafting and {} verifying passes", s.accepted,
                           s.drafted, s.draft_passes, s.verify_passes));
    if (o.show_depth) log_depth(r.depth, session.model().config.layers);
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
  if (!o.speculate.empty()) {
    out["drafted"] = r.stats.speculation.drafted;
    out["accepted"] = r.stats.speculation.accepted;
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

int run_generate(const Arguments& arguments) {
  Args args("generate", "Continues a prompt.",
            "fathom generate -m builtin -p \"The old man\" -n 100 --temp 0\n"
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
  options.ignore_eos = o.ignore_eos;
  options.context_shift = o.model.context_shift;
  options.cancel = &interrupted();
  const int64_t layers = session.model().config.layers;
  const bool shades = o.show_depth && !o.model.json && in_colour(o.color);
  Pieces pieces;
  options.on_text = [&](const TextPiece& piece) {
    if (o.model.json) {
      pieces.emplace_back(piece.text, piece.depth);
      return;
    }
    const std::string shown = for_terminal(piece.text);
    print(shades ? shaded(shown, piece.depth, layers) : shown);
  };
  const std::vector<int32_t> prompt = prompt_ids(session, o, text);
  const auto length = static_cast<int64_t>(prompt.size());
  if (length > session.context()) {
    fail("the prompt has {} tokens, the context {}: shorten the prompt or raise -c", length,
         session.context());
  }
  if (!o.speculate.empty()) {
    options.speculate = draft_options(o);
    options.speculate->kind = session.use_drafts(*options.speculate);
  }
  session.make_cache(o.tokens < 0 ? -1 : length + o.tokens);
  BatcherOptions how = session.engine_options();
  how.records = o.show_depth || o.model.json || options.speculate;
  Generator generator(session.feeder(), how);
  const GenerateResult result = generator.run(prompt, options);
  print_result(result, o, pieces, options.sampler, session);
  if (shades) print(depth_legend(layers));
  return result.finish == FinishReason::kCancelled ? kInterruptedExit : 0;
}

}  // namespace fathom
