// fathom eval: benchmark scores by lm-evaluation-harness's rules.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/progress.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/savings_line.h"
#include "cli/tasks.h"
#include "cli/verbs.h"
#include "eval/chat_items.h"
#include "eval/evaluate.h"
#include "io/atomic_file.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

struct EvalChoice {
  ModelOptions model;
  TaskChoice tasks;
  std::string samples, chat_template;
};

bool parse(Args& args, EvalChoice& o, const Arguments& arguments) {
  add_task_options(args, o.tasks);
  args.text("--chat-template", o.chat_template, "NAME",
            "Ask in this format, the question a user's message: auto (the model's own), " +
                ChatTemplate::known_names());
  args.text("--samples", o.samples, "FILE", "Write each item's scores and answers as JSONL");
  add_model_options(args, o.model, true);
  if (!args.parse(arguments)) return false;
  check_model_options(args, o.model);
  check_task_options("eval", o.tasks);
  return true;
}

Json number(double value) {
  return std::isnan(value) ? Json() : Json(value);
}

const Metric* find(const std::vector<Metric>& metrics, const std::string& name) {
  const auto found =
      std::find_if(metrics.begin(), metrics.end(), [&](const Metric& metric) { return metric.name == name; });
  return found == metrics.end() ? nullptr : &*found;
}

// acc is the share of right answers whatever the task calls it; null where nothing is judged.
Json scores_json(const std::vector<Metric>& metrics, size_t n) {
  Json out;
  const bool judged = !metrics.empty() && counts_right_items(metrics[0].name);
  const Metric* norm = find(metrics, "acc_norm");
  out["n"] = n;
  out["acc"] = judged ? number(metrics[0].value) : Json();
  out["acc_norm"] = norm ? number(norm->value) : Json();
  out["stderr"] = judged ? number(metrics[0].error) : Json();
  for (const Metric& metric : metrics) {
    if (metric.name == "acc") continue;
    out[metric.name] = number(metric.value);
    if (!std::isnan(metric.error)) out[metric.name + "_stderr"] = metric.error;
  }
  return out;
}

Json task_json(const Task& task, const EncodedTask& encoded, const TaskResult& result) {
  Json out = scores_json(result.metrics, task.items.size());
  out["shots"] = task.shots;
  out["truncated"] = encoded.cut;
  out["seconds"] = result.seconds;
  if (result.groups.empty()) return out;
  Json groups;
  for (const auto& [name, metrics] : result.groups) {
    const auto n = std::count_if(task.items.begin(), task.items.end(),
                                 [&, &group = name](const EvalItem& item) { return item.group == group; });
    groups[name] = scores_json(metrics, static_cast<size_t>(n));
  }
  out["groups"] = std::move(groups);
  return out;
}

Json sample_json(const Task& task, size_t i, const ItemResult& result) {
  const EvalItem& item = task.items[i];
  Json out{{"task", task.spec.name}, {"index", i}, {"id", item.id}};
  if (task.spec.kind == TaskKind::kGenerate) {
    out["text"] = result.text;
    for (const Judgement& one : result.judgements)
      out[one.name] = {{"answer", one.answer}, {"right", one.score == 1}, {"score", one.score}};
    if (!result.scores.empty()) out["no_answer_logprob"] = result.scores.front().logprob;
    return out;
  }
  for (const TextScore& score : result.scores) out["logprobs"].push_back(score.logprob);
  if (task.spec.kind == TaskKind::kContinue)
    out["greedy"] = std::any_of(result.scores.begin(), result.scores.end(),
                                [](const TextScore& one) { return one.greedy; });
  if (task.spec.kind == TaskKind::kChoice) {
    out["gold"] = item.gold;
    out["predicted"] = result.predicted;
    out["predicted_norm"] = result.predicted_norm;
    out["predicted_token"] = result.predicted_token;
  }
  return out;
}

std::string row_of(const Task& task, const std::vector<Metric>& metrics) {
  const std::string head =
      fmt::format("{:<28} {:>6} {:>6}", printable(task.spec.name), task.items.size(), task.shots);
  if (metrics.empty()) return head + "  not judged: the answers are programs, which eval does not run\n";
  std::string out;
  for (const Metric& metric : metrics) {
    const std::string error = std::isnan(metric.error) ? "" : fmt::format(" ± {:.4f}", metric.error);
    out += fmt::format("{}  {:<20} {:>10.4f}{}\n", head, metric.name, metric.value, error);
  }
  return out;
}

struct Report {
  int64_t sequences = 0;
  Json tasks = Json::object();
  std::string table =
      fmt::format("{:<28} {:>6} {:>6}  {:<20} {:>10}\n", "task", "items", "shots", "metric", "value");
  std::string samples;  // JSONL
  double seconds = 0;
};

// false: interrupted.
bool run_task(Session& session, const Task& task, const EncodedTask& encoded, Report& report) {
  Progress progress(task.spec.name, static_cast<int64_t>(task.items.size()));
  BatchOptions batch;
  batch.thresholds = session.thresholds();
  batch.whole = session.method() && session.method()->needs_whole_prompt();
  batch.cancel = &interrupted();
  batch.on_progress = [&](int64_t items) { progress.add(items); };
  const TaskResult result = evaluate(session.feeder(), task, encoded, batch);
  if (result.cancelled) return false;
  report.seconds += result.seconds;
  report.sequences += std::ssize(result.items);
  report.tasks[task.spec.name] = task_json(task, encoded, result);
  report.table += row_of(task, result.metrics);
  for (size_t i = 0; i < result.items.size(); ++i)
    report.samples +=
        sample_json(task, i, result.items[i]).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  return true;
}

void print_report(Session& session, const Report& report, int64_t cut, bool json) {
  log_savings(session, session.feeder().books(), asked_budget(session), report.sequences);
  const Savings savings = session.feeder().savings();
  if (!json) {
    std::string text = report.table + fmt::format("{:.1f} s", report.seconds);
    if (session.method())
      text += fmt::format("; {:.1f} % of units skipped, {:.3f} of the blocks' multiply-adds",
                          100 * savings.skip_ratio, savings.block_flops);
    return print(text + "\n");
  }
  Json out;
  out["tasks"] = report.tasks;
  out["seconds"] = report.seconds;
  out["truncated"] = cut;
  add_savings(out, savings);
  print_json(out);
}

}  // namespace

int run_eval(const Arguments& arguments) {
  Args args("eval", "Scores a model on benchmarks, by lm-evaluation-harness's rules.",
            "fathom eval -m model.gguf --tasks arc_challenge,hellaswag --data-dir benchmarks --limit 200\n"
            "  fathom eval -m builtin --tasks my_questions.jsonl --json");
  EvalChoice o;
  if (!parse(args, o, arguments)) return 0;
  std::vector<Task> tasks = load_tasks(o.tasks);
  std::unique_ptr<AtomicFile> samples;
  if (!o.samples.empty()) samples = std::make_unique<AtomicFile>(o.samples);

  Session session(o.model);
  if (!o.chat_template.empty()) {
    const ChatTemplate chat = chat_template_option(session, o.chat_template);
    for (Task& task : tasks) put_into_chat(task, chat);
  }
  const EncodedTasks encoded = encode_tasks(session.tokenizer(), session.context(), tasks);
  session.make_cache(encoded.longest, sequences_for(session.model().config, session.cache_options(),
                                                    encoded.most_items, encoded.longest));
  log_rule(session);
  Report report;
  for (size_t t = 0; t < tasks.size(); ++t) {
    if (!run_task(session, tasks[t], encoded.tasks[t], report)) return kInterruptedExit;
  }
  print_report(session, report, encoded.cut, o.model.json);
  if (!samples) return 0;
  samples->write(report.samples);  // last: a full disk takes no score away
  samples->commit();
  return 0;
}

}  // namespace fathom
