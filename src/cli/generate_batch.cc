// fathom generate --batch: prompts in, answers out, a line each.
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/fields.h"
#include "base/format.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/progress.h"
#include "base/sha256.h"
#include "cli/generate_options.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/savings_line.h"
#include "infer/batch_run.h"
#include "infer/calibrate.h"
#include "skip/fingerprint.h"

namespace fathom {
namespace {

constexpr int64_t kMostParallel = 4096;
constexpr int64_t kNamedFailures = 20;

Request defaults_of(const Args& args, const GenerateChoice& o, const Session& session,
                    const std::optional<DraftOptions>& drafts) {
  Request request;
  request.sampler = sampler_config(args, o.sampling, session.model().generation);
  request.max_tokens = o.tokens;
  request.stops = o.stops;
  request.ignore_eos = o.ignore_eos;
  request.context_shift = o.model.context_shift;
  request.speculate = drafts;
  request.mask = json_mask(session, o);
  return request;
}

std::string list_text(const std::vector<std::string>& texts) {
  return nlohmann::json(texts).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Of an adapter's files: it may be trained again under the same name.
std::string adapter_identity(const std::string& folder) {
  if (folder.empty()) return "none";
  Sha256 hash;
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors", "lora/adapter_config.json",
                           "lora/adapter_model.safetensors"}) {
    std::error_code none;
    const std::string path = folder + "/" + name;
    if (std::filesystem::is_regular_file(path, none)) hash.add(MappedFile::open(path)->bytes());
  }
  return hash.hex();
}

// What the answers depend on: all but the number of threads and of requests that share a pass.
BatchIdentity identity_of(const GenerateChoice& o, Session& session, const BatchSource& source,
                          SamplerConfig sampler) {
  const Fingerprint base = fingerprint(session.ctx(), session.model());
  BatchIdentity identity{
      {"input", source.identity()},
      {"unconditional", std::to_string(o.batch.unconditional)},
      {"start", o.prompt},
      {"model", fmt::format("{}; norms {}", base.shape, base.norms)},
      {"tokenizer", base.tokenizer},
      {"weights", weight_type_name(session.model())},
      {"cache", fmt::format("{} {}", name_of(session.cache_options().k_type),
                            name_of(session.cache_options().v_type))},
      {"device", o.model.device},
      {"adapter", adapter_identity(session.adapter_folder())},
      {"lora", session.has_lora() ? o.model.lora_mode : "none"},
      {"budget", session.has_budget() ? fmt::format("{:g}", session.budget()) : "none"},
      {"execution", o.model.execution},
      {"decide", o.model.decide},
      {"context", fmt::format("{}{}", session.context(), o.model.context_shift ? ", shifting" : "")},
      {"max_tokens", std::to_string(o.tokens)},
      {"stops", list_text(o.stops)},
      {"ignore_eos", o.ignore_eos ? "yes" : "no"},
      {"speculation",
       fmt::format("{} {} {:g} {}", o.drafts.speculate, o.drafts.draft, o.drafts.budget, o.drafts.vocab)},
      {"json", o.json_object           ? "an object"
               : o.json_schema.empty() ? "no"
                                       : read_input(o.json_schema)},
      {"chat_template", o.chat_template},
      {"system", o.system},
      {"ids", o.batch.ids ? "yes" : "no"},
      {"logit_bias", list_text(o.sampling.logit_bias)}};
  for (const Field& field : fields_of(sampler)) identity.emplace_back(field.name, field_text(field));
  return identity;
}

struct Outcome {
  BatchRunResult run;
  int64_t requests = 0, kept = 0, done = 0, failed = 0;  // kept: there before this run
  double seconds = 0;
  bool own_budgets = false;  // some requests name their own

  double tokens_per_s() const { return seconds > 0 ? static_cast<double>(run.generated) / seconds : 0; }
};

void print_outcome(const Outcome& r, const GenerateChoice& o, Session& session) {
  if (!o.model.json) {
    log_info(fmt::format("{} of {} answers are in {}{}; {} new tokens at {:.1f}/s", r.done, r.requests,
                         printable(o.batch.output),
                         r.kept > 0 ? fmt::format(", {} of them from before", r.kept) : "", r.run.generated,
                         r.tokens_per_s()));
    return;
  }
  nlohmann::ordered_json out;
  out["requests"] = r.requests;
  out["kept"] = r.kept;
  out["failed"] = r.failed;
  out["generated_tokens"] = r.run.generated;
  out["tokens_per_s"] = r.tokens_per_s();
  out["seconds"] = r.seconds;
  if (!o.drafts.speculate.empty()) {
    out["drafted"] = r.run.speculation.drafted;
    out["accepted"] = r.run.speculation.accepted;
  }
  add_savings(out, session.feeder().savings());
  print_json(out);
}

// The output and the file beside it may not be the prompts' own.
void refuse_to_overwrite_prompts(const BatchChoice& batch) {
  for (const std::string& out : {batch.output, batch.output + ".run.json"}) {
    std::error_code error;
    if (std::filesystem::equivalent(batch.input, out, error))
      throw UsageError(fmt::format("-o {}: {} is the file with the prompts; write somewhere else",
                                   printable(batch.output), printable(out)));
  }
}

// Names the requests that could not be answered, the first ones of many.
class Failures {
 public:
  void add(const std::string& why) {
    if (++count_ <= kNamedFailures) log_warn(why);
    if (count_ == kNamedFailures + 1) log_warn("more requests that cannot be answered: see their lines");
  }

 private:
  int64_t count_ = 0;
};

Outcome answer_all(const GenerateChoice& o, Session& session, const BatchSource& source,
                   BatchOutput& output) {
  BatcherOptions how = session.engine_options();
  how.rows = std::max<int64_t>(EngineOptions().rows, 2 * o.batch.parallel);
  const BatchPlan plan = plan_batch(source, output.done(), &interrupted());
  session.make_cache(plan.longest, o.batch.parallel, how.rows);
  log_rule(session);
  Outcome outcome{
      .run = {}, .requests = source.size(), .kept = output.done(), .own_budgets = plan.own_budgets};
  Progress bar("answering", source.size() - output.done());
  Failures failures;
  BatchRunOptions options;
  options.ids = o.batch.ids;
  options.cancel = &interrupted();
  options.on_done = [&](int64_t lines) { bar.add(lines); };
  options.on_failure = [&](const std::string& why) { failures.add(why); };
  const auto start = std::chrono::steady_clock::now();
  Batcher batcher(session.feeder(), how);
  outcome.run = run_batch(batcher, source, output, options);
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  outcome.done = output.done();
  outcome.failed = output.failed();
  return outcome;
}

}  // namespace

void add_batch_options(Args& args, BatchChoice& choice) {
  args.group("Offline batches");
  args.text("--batch", choice.input, "FILE",
            "JSONL: a line each, {\"prompt\": …} or {\"messages\": […]}, with id, max_tokens, seed, budget, "
            "temperature where they differ");
  args.text("-o,--output", choice.output, "FILE",
            "The answers as JSONL, in the same order; a file that an earlier run began is gone on with");
  args.integer("--unconditional", choice.unconditional,
               "Texts that begin from nothing (or with -p), each with its own seed", 0, INT32_MAX);
  args.integer("--parallel", choice.parallel, "Answers that are written at the same time", 1, kMostParallel);
  args.flag("--ids", choice.ids, "The lines hold the answers' tokens too");
  args.flag("--force", choice.force, "Begin the output again, whatever is in it");
}

void check_batch_options(const Args& args, const BatchChoice& choice) {
  if (!choice.on()) {
    for (const char* option : {"--output", "--parallel", "--ids", "--force"}) {
      if (args.given(option))
        throw UsageError(
            fmt::format("{} goes with --batch or --unconditional, which were not given", option));
    }
    return;
  }
  if (choice.output.empty()) throw UsageError("generate: a batch needs a file for its answers: give -o");
  for (const char* option : {"--file", "--show-depth"}) {
    if (args.given(option))
      throw UsageError(fmt::format("{} goes with one prompt, not with a batch", option));
  }
  if (args.given("--prompt") && choice.unconditional == 0)
    throw UsageError("generate: the prompts come from --batch or from -p, not from both");
}

int run_generate_batch(const Args& args, const GenerateChoice& o) {
  Session session(o.model);
  session.tokenizer();  // none: its error says what to give
  if (!o.chat_template.empty()) chat_template_option(session, o.chat_template);
  std::optional<DraftOptions> drafts;
  try {
    drafts = use_drafts(session, o.drafts);
  } catch (const PrepareCancelled&) {
    return kInterruptedExit;
  }
  const Request defaults = defaults_of(args, o, session, drafts);
  const BatchSource source(session.model(), {.file = o.batch.input,
                                             .unconditional = o.batch.unconditional,
                                             .start = o.prompt,
                                             .defaults = defaults,
                                             .chat_template = o.chat_template,
                                             .system = o.system});
  if (source.size() == 0) fail("{}: there are no lines in it", printable(o.batch.input));
  refuse_to_overwrite_prompts(o.batch);
  BatchOutput output(o.batch.output, identity_of(o, session, source, defaults.sampler), o.batch.force);
  const Outcome outcome = answer_all(o, session, source, output);
  print_outcome(outcome, o, session);
  log_savings(session, session.feeder().books(), outcome.own_budgets ? std::nullopt : asked_budget(session),
              outcome.requests - outcome.kept, !drafts);
  if (outcome.run.cancelled) return kInterruptedExit;
  if (outcome.failed > 0)
    fail("{} of {} requests could not be answered: their lines in {} say why", outcome.failed,
         outcome.requests, printable(o.batch.output));
  return 0;
}

}  // namespace fathom
