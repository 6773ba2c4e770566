#include "eval/evaluate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "base/format.h"
#include "eval/batch_generate.h"
#include "eval/python_text.h"
#include "eval/squad.h"

namespace fathom {
namespace {

ItemRequests requests_of(const Task& task, const EvalItem& item, const RequestEncoder& encoder) {
  ItemRequests requests;
  if (task.spec.kind == TaskKind::kRolling) return encoder.rolling(item.text);
  if (task.spec.kind == TaskKind::kGenerate) {
    const GenerationRules& rules = task.spec.generation;
    requests.push_back(encoder.prompt(item.prompt, rules.max_tokens));
    if (!rules.no_answer.empty()) requests.push_back(encoder.pair(item.prompt, rules.no_answer));
    return requests;
  }
  for (const ScoredText& option : item.options)
    requests.push_back(encoder.pair(option.context, option.continuation));
  return requests;
}

// Items of a group follow each other, since they may share their examples; within it the longest come first,
// so that no long one is left alone at the end.
std::vector<size_t> order_of(const Task& task, const EncodedTask& encoded) {
  std::vector<size_t> order(task.items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto length = [&](size_t i) { return encoded.items[i].front().tokens.size(); };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const std::string &x = task.items[a].group, &y = task.items[b].group;
    return x != y ? x < y : length(a) > length(b);
  });
  return order;
}

void choose(const EvalItem& item, const ItemRequests& requests, ItemResult& result) {
  std::vector<double> plain, by_length, by_token;
  for (size_t i = 0; i < result.scores.size(); ++i) {
    plain.push_back(result.scores[i].logprob);
    by_length.push_back(result.scores[i].logprob / static_cast<double>(item.characters[i]));
    by_token.push_back(result.scores[i].logprob / static_cast<double>(requests[i].scored));
  }
  result.predicted = index_of_largest(plain);
  result.predicted_norm = index_of_largest(by_length);
  result.predicted_token = index_of_largest(by_token);
}

// fn(item) for each of the items.
template <class Fn>
std::vector<double> values_of(std::span<const size_t> items, Fn&& fn) {
  std::vector<double> values;
  for (size_t i : items) values.push_back(fn(i));
  return values;
}

// What an option earns.
WordScore credit_of(const EvalItem& item, int64_t option) {
  if (!item.credit.empty()) return item.credit[static_cast<size_t>(option)];
  const double right = option == item.gold ? 1 : 0;
  return {right, right};
}

std::vector<Metric> choice_metrics(const Task& task, const std::vector<ItemResult>& results,
                                   std::span<const size_t> items) {
  std::vector<int64_t> gold, predicted;
  std::vector<std::string> groups;
  for (size_t i : items) {
    gold.push_back(task.items[i].gold);
    predicted.push_back(results[i].predicted);
    groups.push_back(task.items[i].group);
  }
  const auto right = [&](int64_t ItemResult::*answer) {
    return values_of(items, [&](size_t i) { return credit_of(task.items[i], results[i].*answer).exact; });
  };
  std::vector<Metric> metrics{grouped_mean_metric(task.spec.right, right(&ItemResult::predicted), groups),
                              grouped_mean_metric("acc_norm", right(&ItemResult::predicted_norm), groups),
                              grouped_mean_metric("acc_token", right(&ItemResult::predicted_token), groups)};
  if (task.spec.extra == ExtraMetric::kWordF1)
    metrics.push_back(mean_metric(
        "f1", values_of(items, [&](size_t i) { return credit_of(task.items[i], results[i].predicted).f1; })));
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  if (task.spec.extra == ExtraMetric::kF1) metrics.push_back({"f1", f1_score(gold, predicted, 1), kNone});
  if (task.spec.extra == ExtraMetric::kMacroF1) {
    const auto classes = static_cast<int64_t>(task.items.front().options.size());
    double sum = 0;
    for (int64_t one = 0; one < classes; ++one) sum += f1_score(gold, predicted, one);
    metrics.push_back({"f1", sum / static_cast<double>(classes), kNone});
  }
  return metrics;
}

std::vector<Metric> continuation_metrics(const Task& task, const std::vector<ItemResult>& results,
                                         std::span<const size_t> items) {
  const auto any_greedy = [&](size_t i) {
    const std::vector<TextScore>& scores = results[i].scores;
    return std::any_of(scores.begin(), scores.end(), [](const TextScore& one) { return one.greedy; }) ? 1.0
                                                                                                      : 0.0;
  };
  std::vector<Metric> metrics{mean_metric(task.spec.right, values_of(items, any_greedy))};
  if (task.spec.extra == ExtraMetric::kPerplexity)
    metrics.push_back(
        perplexity_metric(values_of(items, [&](size_t i) { return results[i].scores.front().logprob; })));
  return metrics;
}

// The mean of one way of judging.
Metric judged_mean(const std::string& name, const Task& task, const std::vector<ItemResult>& results,
                   std::span<const size_t> items, size_t way) {
  std::vector<std::string> groups;
  for (size_t i : items) groups.push_back(task.items[i].group);
  return grouped_mean_metric(
      name, values_of(items, [&](size_t i) { return results[i].judgements[way].score; }), groups);
}

// SQuAD 2.0's: those with and those without an answer apart, and the best that a threshold on the probability
// of "unanswerable" would give.
void add_squad_metrics(const Task& task, const std::vector<ItemResult>& results,
                       std::span<const size_t> items, std::vector<Metric>& metrics) {
  std::vector<size_t> with, without;
  for (size_t i : items) (task.items[i].answers.empty() ? without : with).push_back(i);
  const std::vector<Metric> plain = metrics;
  for (const auto& [prefix, part] : {std::pair{"HasAns_", with}, std::pair{"NoAns_", without}}) {
    for (size_t way = 0; way < plain.size() && !part.empty(); ++way)
      metrics.push_back(judged_mean(prefix + plain[way].name, task, results, part, way));
  }
  for (size_t way = 0; way < plain.size(); ++way) {
    std::vector<AnsweredQuestion> questions;
    for (size_t i : items)
      questions.push_back({results[i].judgements[way].score, !task.items[i].answers.empty(),
                           !results[i].text.empty(),
                           static_cast<float>(std::exp(results[i].scores.front().logprob))});
    constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
    metrics.push_back({"best_" + plain[way].name, best_over_thresholds(questions), kNone});
  }
}

std::vector<Metric> answer_metrics(const Task& task, const std::vector<ItemResult>& results,
                                   std::span<const size_t> items) {
  std::vector<Metric> metrics;
  const std::vector<Judgement>& first = results[items.front()].judgements;
  for (size_t way = 0; way < first.size(); ++way)
    metrics.push_back(judged_mean(first[way].name, task, results, items, way));
  if (!task.spec.generation.no_answer.empty()) add_squad_metrics(task, results, items, metrics);
  return metrics;
}

std::vector<Metric> text_metrics(const Task& task, const EncodedTask& encoded,
                                 const std::vector<ItemResult>& results, std::span<const size_t> items) {
  std::vector<double> logprobs, scored;  // of each window
  double logprob = 0, tokens = 0, words = 0, bytes = 0;
  for (size_t i : items) {
    for (const TextScore& window : results[i].scores) logprobs.push_back(window.logprob);
    for (const TokenRequest& window : encoded.items[i]) scored.push_back(static_cast<double>(window.scored));
    words += static_cast<double>(count_words(task.items[i].text));
    bytes += static_cast<double>(task.items[i].text.size());
  }
  for (const double one : logprobs) logprob += one;
  for (const double one : scored) tokens += one;
  const auto perplexity = [&](const char* name, double total) {
    const double value = std::exp(-logprob / total);
    return window_metric(name, value, value, logprobs, scored, total);
  };
  const double bit = std::log(2.0);
  return {perplexity("token_perplexity", tokens), perplexity("word_perplexity", words),
          perplexity("byte_perplexity", bytes),
          window_metric("bits_per_byte", -logprob / bytes / bit, 1 / bit, logprobs, scored, bytes)};
}

void write_answers(Feeder& feeder, const Task& task, const EncodedTask& encoded,
                   std::span<const size_t> order, const BatchOptions& options, TaskResult& result) {
  const GenerationRules& rules = task.spec.generation;
  const std::vector<std::string> texts = generate_items(feeder, encoded.items, order, rules, options);
  for (size_t i = 0; i < texts.size(); ++i) {
    result.items[i].text = texts[i];
    result.items[i].judgements = judge(rules.answer, texts[i], task.items[i].answers);
  }
  if (rules.no_answer.empty()) return;
  std::vector<ItemRequests> asked;  // each item's second request
  for (const ItemRequests& item : encoded.items) asked.push_back({item[1]});
  BatchOptions quiet = options;  // the items have been counted
  quiet.on_progress = nullptr;
  auto scores = score_items(feeder, asked, order, quiet);
  for (size_t i = 0; i < scores.size(); ++i) result.items[i].scores = std::move(scores[i]);
}

void add_groups(const Task& task, const EncodedTask& encoded, TaskResult& result) {
  std::map<std::string, std::vector<size_t>> members;
  for (size_t i = 0; i < task.items.size(); ++i) {
    if (!task.items[i].group.empty()) members[task.items[i].group].push_back(i);
  }
  for (const auto& [name, items] : members)
    result.groups.emplace_back(name, metrics_of(task, encoded, result.items, items));
}

}  // namespace

EncodedTask encode_task(const Task& task, const RequestEncoder& encoder) {
  EncodedTask encoded;
  for (const EvalItem& item : task.items) {
    try {
      encoded.items.push_back(requests_of(task, item, encoder));
      if (encoded.items.back().empty()) fail("the text has no tokens");
    } catch (const UserError& error) {
      fail("{}, item {}: {}", printable(task.spec.name), printable(item.id), error.what());
    }
    bool cut = false;
    for (const TokenRequest& request : encoded.items.back()) {
      const int64_t more = request.scored == 0 ? task.spec.generation.max_tokens : -1;
      const auto fed = static_cast<int64_t>(request.tokens.size()) + more;
      encoded.longest = std::max(encoded.longest, fed);
      cut = cut || request.cut > 0;
    }
    encoded.cut += cut;
  }
  return encoded;
}

int64_t sequences_for(const ModelConfig& config, const KvCacheOptions& cache, int64_t items,
                      int64_t longest) {
  constexpr int64_t kMostSequences = 32, kCacheBytes = int64_t{1} << 30;
  const int64_t entry =
      config.kv_heads * (row_bytes(cache.k_type, config.head_dim) + row_bytes(cache.v_type, config.head_dim));
  return std::clamp<int64_t>(kCacheBytes / std::max<int64_t>(1, entry * config.layers * longest), 1,
                             std::min(items, kMostSequences));
}

std::vector<Metric> metrics_of(const Task& task, const EncodedTask& encoded,
                               const std::vector<ItemResult>& results, std::span<const size_t> items) {
  switch (task.spec.kind) {
    case TaskKind::kChoice:
      return choice_metrics(task, results, items);
    case TaskKind::kContinue:
      return continuation_metrics(task, results, items);
    case TaskKind::kGenerate:
      return answer_metrics(task, results, items);
    case TaskKind::kRolling:
      return text_metrics(task, encoded, results, items);
  }
  return {};
}

TaskResult evaluate(Feeder& feeder, const Task& task, const EncodedTask& encoded,
                    const BatchOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<size_t> order = order_of(task, encoded);
  TaskResult result;
  result.items.resize(task.items.size());
  if (task.spec.kind == TaskKind::kGenerate) {
    write_answers(feeder, task, encoded, order, options, result);
  } else {
    auto scores = score_items(feeder, encoded.items, order, options);
    for (size_t i = 0; i < scores.size(); ++i) result.items[i].scores = std::move(scores[i]);
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.cancelled = options.cancel && options.cancel->load(std::memory_order_relaxed);
  if (result.cancelled) return result;
  if (task.spec.kind == TaskKind::kChoice) {
    for (size_t i = 0; i < task.items.size(); ++i) choose(task.items[i], encoded.items[i], result.items[i]);
  }
  std::vector<size_t> all(task.items.size());
  std::iota(all.begin(), all.end(), size_t{0});
  result.metrics = metrics_of(task, encoded, result.items, all);
  add_groups(task, encoded, result);
  return result;
}

}  // namespace fathom
