#include "eval/evaluate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "base/format.h"
#include "eval/batch_generate.h"

namespace fathom {
namespace {

ItemRequests requests_of(const Task& task, const EvalItem& item, const RequestEncoder& encoder) {
  ItemRequests requests;
  if (task.spec.kind == TaskKind::kRolling) return encoder.rolling(item.text);
  if (task.spec.kind == TaskKind::kGenerate)
    return {encoder.prompt(item.prompt, task.spec.generation.max_tokens)};
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

void choose(const EvalItem& item, ItemResult& result) {
  std::vector<double> plain, by_length;
  for (size_t i = 0; i < result.scores.size(); ++i) {
    plain.push_back(result.scores[i].logprob);
    by_length.push_back(result.scores[i].logprob / static_cast<double>(item.characters[i]));
  }
  result.predicted = index_of_largest(plain);
  result.predicted_norm = index_of_largest(by_length);
}

// fn(item) for each of the items.
template <class Fn>
std::vector<double> values_of(std::span<const size_t> items, Fn&& fn) {
  std::vector<double> values;
  for (size_t i : items) values.push_back(fn(i));
  return values;
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
    return values_of(items, [&](size_t i) { return results[i].*answer == task.items[i].gold ? 1.0 : 0.0; });
  };
  std::vector<Metric> metrics{grouped_mean_metric("acc", right(&ItemResult::predicted), groups),
                              grouped_mean_metric("acc_norm", right(&ItemResult::predicted_norm), groups)};
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
  std::vector<Metric> metrics{mean_metric(
      "acc", values_of(items, [&](size_t i) { return results[i].scores.front().greedy ? 1.0 : 0.0; }))};
  if (task.spec.extra == ExtraMetric::kPerplexity)
    metrics.push_back(
        perplexity_metric(values_of(items, [&](size_t i) { return results[i].scores.front().logprob; })));
  return metrics;
}

std::vector<Metric> answer_metrics(const std::vector<ItemResult>& results, std::span<const size_t> items) {
  std::vector<Metric> metrics;
  const std::vector<Judgement>& first = results[items.front()].judgements;
  for (size_t way = 0; way < first.size(); ++way)
    metrics.push_back(mean_metric(first[way].name, values_of(items, [&](size_t i) {
                                    return results[i].judgements[way].right ? 1.0 : 0.0;
                                  })));
  return metrics;
}

std::vector<Metric> text_metrics(const Task& task, const EncodedTask& encoded,
                                 const std::vector<ItemResult>& results, std::span<const size_t> items) {
  double logprob = 0, tokens = 0, words = 0, bytes = 0;
  for (size_t i : items) {
    for (const TextScore& window : results[i].scores) logprob += window.logprob;
    for (const TokenRequest& window : encoded.items[i]) tokens += static_cast<double>(window.scored);
    words += static_cast<double>(count_words(task.items[i].text));
    bytes += static_cast<double>(task.items[i].text.size());
  }
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  return {{"token_perplexity", std::exp(-logprob / tokens), kNone},
          {"word_perplexity", std::exp(-logprob / words), kNone},
          {"byte_perplexity", std::exp(-logprob / bytes), kNone},
          {"bits_per_byte", -logprob / bytes / std::log(2.0), kNone}};
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
  const bool generates = task.spec.kind == TaskKind::kGenerate;
  for (const EvalItem& item : task.items) {
    try {
      encoded.items.push_back(requests_of(task, item, encoder));
      if (encoded.items.back().empty()) fail("the text has no tokens");
    } catch (const UserError& error) {
      fail("{}, item {}: {}", printable(task.spec.name), printable(item.id), error.what());
    }
    bool cut = false;
    for (const TokenRequest& request : encoded.items.back()) {
      const auto fed =
          static_cast<int64_t>(request.tokens.size()) + (generates ? task.spec.generation.max_tokens : -1);
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
      return answer_metrics(results, items);
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
    const std::vector<std::string> texts =
        generate_items(feeder, encoded.items, order, task.spec.generation, options);
    for (size_t i = 0; i < texts.size(); ++i) {
      result.items[i].text = texts[i];
      result.items[i].judgements = judge(task.spec.generation.answer, texts[i], task.items[i].answers);
    }
  } else {
    auto scores = score_items(feeder, encoded.items, order, options);
    for (size_t i = 0; i < scores.size(); ++i) result.items[i].scores = std::move(scores[i]);
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.cancelled = options.cancel && options.cancel->load(std::memory_order_relaxed);
  if (result.cancelled) return result;
  if (task.spec.kind == TaskKind::kChoice) {
    for (size_t i = 0; i < task.items.size(); ++i) choose(task.items[i], result.items[i]);
  }
  std::vector<size_t> all(task.items.size());
  std::iota(all.begin(), all.end(), size_t{0});
  result.metrics = metrics_of(task, encoded, result.items, all);
  add_groups(task, encoded, result);
  return result;
}

}  // namespace fathom
