// fathom inspect: why a text's tokens ran what they ran.
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/log.h"
#include "base/progress.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/savings_line.h"
#include "cli/verbs.h"
#include "infer/score.h"
#include "report/inspection.h"

namespace fathom {
namespace {

struct InspectChoice {
  ModelOptions model;
  std::string prompt, file, folder;
};

bool parse(Args& args, InspectChoice& o, const Arguments& arguments) {
  args.text("-p,--prompt", o.prompt, "TEXT", "The text");
  args.text("-f,--file", o.file, "FILE", "The text from a file; -: from stdin");
  args.text("-o,--out", o.folder, "DIR", "Where the figures go: index.html, SVG, PNG and trace.json");
  add_model_options(args, o.model, true);
  if (!args.parse(arguments)) return false;
  check_model_options(args, o.model);
  if (args.given("--prompt") == args.given("--file"))
    throw UsageError("inspect: give the text with either -p or --file");
  if (o.folder.empty()) throw UsageError("inspect: -o must name the folder for the figures");
  return true;
}

std::string rule_of(const Session& session, const ModelOptions& o) {
  if (!session.method()) return "everything runs";
  if (!session.has_budget() && session.trained_rule())
    return "thresholds that keep the share which training skipped";
  if (!session.thresholds().empty())
    return fmt::format("thresholds calibrated for a budget of {:g}", session.budget());
  return o.decide.empty() ? "the method's own rule" : "the batch's quantile";
}

void print_summary(const std::vector<std::string>& files, const Inspection& in, const InspectChoice& o) {
  if (!o.model.json) {
    print(to_markdown(InspectionStats(in).class_table()));
    print(fmt::format("\n{} tokens, skip ratio {:.3f}: {}/index.html and {} files beside it\n",
                      in.pieces.size(), in.savings.skip_ratio, printable(o.folder), files.size() - 1));
    return;
  }
  nlohmann::ordered_json out;
  out["tokens"] = in.pieces.size();
  out["method"] = in.method;
  out["rule"] = in.rule;
  add_savings(out, in.savings);
  out["folder"] = o.folder;
  out["files"] = files;
  print_json(out);
}

}  // namespace

int run_inspect(const Arguments& arguments) {
  Args args("inspect",
            "Shows why a text's tokens ran what they ran: maps, densities and tables, by token and layer.",
            "fathom inspect -m runs/skip_layer/last -p \"Mary went to the garden.\" -o report\n"
            "  fathom inspect -m model.gguf --adapter routers --budget 0.8 --file text.txt -o report");
  InspectChoice o;
  if (!parse(args, o, arguments)) return 0;
  const std::string text = args.given("--file") ? read_input(o.file) : o.prompt;
  warn_about_bytes(text);
  Session session(o.model);
  const Tokenizer& tokenizer = session.tokenizer();
  const std::vector<int32_t> ids = tokenizer.encode(text);
  const auto count = static_cast<int64_t>(ids.size());
  if (count > session.context())
    fail("inspect: the text has {} tokens, the context {}: shorten it or raise -c", count, session.context());
  if (count == 0) fail("inspect: the text has no tokens");
  Figures figures(o.folder);
  session.make_cache(count);
  log_rule(session);

  Trace trace;
  session.feeder().record(&trace);
  Progress progress("reading", count);
  ScoreOptions options;
  if (session.method() && session.method()->needs_whole_prompt()) options.chunk = count;
  options.cancel = &interrupted();
  options.on_progress = [&](int64_t done) { progress.add(done); };
  const ScoreResult result = score(session.feeder(), ids, options);
  if (result.cancelled) return kInterruptedExit;
  log_savings(session, session.feeder().books(), asked_budget(session));

  Inspection in{.model = o.model.model,
                .method = session.method() ? session.method()->name() : "dense",
                .rule = rule_of(session, o.model),
                .pieces = {},
                .special = {},
                .logprobs = result.logprobs,
                .thresholds = session.thresholds(),
                .trace = trace,
                .savings = session.feeder().savings()};
  if (!in.thresholds.empty()) in.thresholds.resize(static_cast<size_t>(2 * session.model().config.layers));
  for (const int32_t id : ids) {
    in.pieces.push_back(tokenizer.piece(id, true));
    in.special.push_back(tokenizer.is_special(id));
  }
  write_inspection(in, figures);
  print_summary(figures.files(), in, o);
  return 0;
}

}  // namespace fathom
