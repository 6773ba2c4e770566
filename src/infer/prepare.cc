// Batcher::prepare: what a request must be, before anything of it is computed.
#include "base/format.h"
#include "infer/batcher.h"

namespace fathom {

uint64_t answer_seed(uint64_t seed, int64_t index) {
  if (index == 0) return seed;
  constexpr uint32_t kAnswers = 0xa45e75;
  Rng rng(seed, {kAnswers, static_cast<uint32_t>(index), 0});
  const uint64_t high = rng.next_u32();
  return high << 32 | rng.next_u32();
}

namespace {

void check_prompt(const Request& request, int64_t vocab) {
  const auto size = static_cast<int64_t>(request.prompt.size());
  if (size == 0) fail("the prompt has no tokens: give it at least one");
  if (size > request.context)
    fail("the prompt has {} tokens, the context {}: shorten the prompt", size, request.context);
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= vocab) fail("token {} is not in the model's vocabulary of {}", token, vocab);
  }
}

void check_numbers(const Request& request, int64_t most_answers, int64_t vocab) {
  const auto between = [](const char* name, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most) fail("{} must be from {} to {}, got {}", name, least, most, value);
  };
  between("the number of answers", request.answers, 1, most_answers);
  between("the number of log-probabilities", request.log_probs, -1, vocab);
  between("the priority", request.priority, -1'000'000, 1'000'000);
  for (const int32_t id : request.end_ids) between("a stop token", id, 0, vocab - 1);
}

// The budget that the answer runs at: 1 where the method's own rule decides.
double budget_of(const Request& request, const BatcherOptions& options) {
  return double{request.budget.value_or(options.budget.value_or(1.0f))};
}

std::optional<Speculation> speculation_of(const Request& request, const BatcherOptions& options,
                                          Feeder& feeder) {
  if (!request.speculate) return {};
  if (feeder.policy().needs_whole_prompt())
    fail("speculation takes tokens back, which this method cannot: it decides on the whole prompt");
  const bool made_for_drafts = dynamic_cast<SpeculativeState*>(&feeder.state());
  const bool drafts = options.records && made_for_drafts;
  const bool named = request.speculate->kind.has_value();
  const DraftSource source =
      named || drafts ? DraftSource{options.budgets, options.harm_order} : DraftSource{};
  Speculation made =
      make_speculation(feeder.model(), source, *request.speculate, budget_of(request, options));
  if (!made.length.model || drafts) return made;
  if (!options.records) fail("drafts by the model need an engine that records its passes");
  fail("this engine does not draft with the model: its policy is not made for it");
}

std::vector<float> thresholds_of(const Request& request, const BatcherOptions& options, Feeder& feeder) {
  const std::optional<float> budget = request.budget ? request.budget : options.budget;
  if (!budget) return options.thresholds;
  if (options.budgets) return options.budgets->thresholds(double{*budget});
  if (!skip_state_of(feeder.state())) return Budgets().thresholds(double{*budget});
  check_budget(double{*budget});
  fail("a budget of {:g} needs a method with a calibration table", *budget);
}

}  // namespace

std::vector<std::unique_ptr<Lane>> Batcher::prepare(Request request) const {
  const Model& model = feeder_.model();
  // No longer than one sequence that skips nothing could have the whole pool to itself.
  const KvCache& cache = feeder_.cache();
  const int64_t room = cache.longest();
  if (request.context < 0) fail("the context must be 0 (the cache's) or more, got {}", request.context);
  request.context = request.context == 0 ? room : std::min(request.context, room);
  if (request.context_shift && request.context < 4)
    fail("shifting the context needs one of at least 4 tokens, got {}", request.context);
  if (request.units && !options_.records) fail("a request for units needs an engine that records its passes");
  check_prompt(request, model.config.vocab);
  check_numbers(request, options_.most_answers, model.config.vocab);
  if (!request.ignore_eos)
    request.end_ids.insert(request.end_ids.end(), model_ends_.begin(), model_ends_.end());
  Writer(model, request, request.prompt);  // says what is wrong with the rest

  auto shared = std::make_shared<SharedRequest>();
  shared->thresholds = thresholds_of(request, options_, feeder_);
  shared->speculation = speculation_of(request, options_, feeder_);
  shared->request = std::move(request);
  std::vector<std::unique_ptr<Lane>> lanes;
  for (int64_t index = 0; index < shared->request.answers; ++index) {
    auto lane = std::make_unique<Lane>();
    lane->shared = shared;
    lane->index = index;
    lane->out = std::make_shared<TokenQueue>(static_cast<size_t>(options_.tokens_ahead), doorbell_);
    lane->came = options_.now();
    lanes.push_back(std::move(lane));
  }
  return lanes;
}

}  // namespace fathom
