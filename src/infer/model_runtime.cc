#include "infer/model_runtime.h"

#include <algorithm>
#include <chrono>

#include "base/format.h"
#include "base/log.h"
#include "base/system_memory.h"
#include "infer/model_path.h"
#include "infer/speculative_policy.h"

namespace fathom {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Options that do not go with this model.
template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw UsageError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace

LoadedModel load_named(const LoadRequest& source) {
  const auto start = Clock::now();
  LoadOptions load;
  load.dtype = source.weights;
  load.mode = source.map_file ? MappedFile::Mode::kMap : MappedFile::Mode::kRead;
  const ModelFiles files = find_model(source.model);
  load.tokenizer = source.tokenizer.empty() ? files.tokenizer : source.tokenizer;
  LoadedModel loaded;
  loaded.ctx = std::make_unique<Context>(source.where);
  loaded.model = load_model(*loaded.ctx, files.model, load);
  loaded.load_seconds = seconds_since(start);
  return loaded;
}

LoadedModel load_to_run(const LoadRequest& source) {
  const auto start = Clock::now();
  LoadedModel loaded = load_named(source);
  // A file that was read is in memory already, and a model that does not fit is better left to the page
  // cache.
  if (source.map_file && loaded.model.weight_bytes() < available_memory() / 4 * 3)
    arrange_weights(*loaded.ctx, loaded.model);
  loaded.load_seconds = seconds_since(start);
  return loaded;
}

ModelRuntime::ModelRuntime(const Options& options)
    : loaded_(load_to_run(options.source)),
      budget_(options.budget),
      masked_(options.masked),
      batch_quantile_(options.batch_quantile) {
  const DType usual = options.source.weights == DType::kF32 ? DType::kF32 : DType::kF16;
  cache_options_.k_type = options.k_type.value_or(usual);
  cache_options_.v_type = options.v_type.value_or(usual);
  const int64_t trained = model().config.context;
  context_ = options.context > 0 ? options.context : trained;
  if (context_ > trained) {
    log_warn(fmt::format(
        "a context of {} is longer than the {} tokens this model was trained for: what comes after them will "
        "be poor",
        context_, trained));
  }
  load_method(options);
}

// The adapter that was asked for, or the model's own method.
void ModelRuntime::load_method(const Options& options) {
  const bool own = options.adapter.empty();
  folder_ = own && !options.dense ? own_method(model().path) : options.adapter;
  if (folder_.empty()) {
    const char* const why = "this is a dense model without a skipping method";
    if (options.quality)
      refuse("a bound on {} needs an adapter with a calibration table; {}", options.quality->measure, why);
    if (budget() != 1)
      refuse("a budget of {:g} needs an adapter with a calibration table; {}, which runs everything",
             budget(), why);
    if (masked_) refuse("masked execution needs decisions to mask; {}", why);
    if (batch_quantile_) refuse("batch_quantile needs scores to decide on; {}", why);
    return;
  }
  // A model's own method fits it; its thresholds do not where it was given another tokenizer.
  const bool has_budget = options.budget || options.quality;
  adapter_ = load_adapter(ctx(), folder_, model(), options.force_adapter || (own && !has_budget));
  budgets_ = std::make_unique<Budgets>(model(), adapter_, folder_);
  if (options.quality) budget_ = budgets_->budget_for(*options.quality);
  if (budget_) thresholds_ = budgets_->thresholds(*budget_);
  if (batch_quantile_ && !method()->has_batch_quantile())
    refuse("batch_quantile is gate_skip's rule; this is {}, which has no such rule", method()->name());
}

DraftKind ModelRuntime::use_drafts(const DraftOptions& options) {
  if (masked_ || batch_quantile_)
    refuse("speculation runs what it decides: it goes neither with masked execution nor with batch_quantile");
  if (method() && method()->needs_whole_prompt())
    refuse(
        "speculation takes tokens back, and {} as it is configured decides on the whole of what it was fed",
        method()->name());
  const bool calibrated = budgets_ && !budgets_->empty();
  const DraftKind kind = options.kind.value_or(calibrated ? DraftKind::kMethod : DraftKind::kHarmOrder);
  if (kind == DraftKind::kMethod) {
    if (!method())
      refuse("a draft by the method needs an adapter with a calibration table: this is a dense model");
    if (options.budget >= budget())
      refuse("the drafts' budget must be below the budget of {:g}, got {:g}", budget(), options.budget);
  }
  if (kind == DraftKind::kHarmOrder) harm_order_ = measure_harm_order(ctx(), model());
  speculative_ = std::make_unique<SpeculativePolicy>(verifier());
  return kind;
}

void ModelRuntime::make_cache(int64_t tokens, int64_t sequences) {
  cache_options_.sequences = sequences;
  cache_options_.context = tokens < 0 ? context_ : std::clamp<int64_t>(tokens, 1, context_);
  const SkipPolicy& policy = speculative_ ? static_cast<const SkipPolicy&>(*speculative_) : verifier();
  sequences_ =
      std::make_unique<Sequences>(ctx(), model(), policy, Sequences::Options{cache_options_, thresholds_});
  if (!method()) return;
  SkipState& state = *skip_state_of(sequences_->state());
  state.pass.masked = masked_;
  state.pass.batch_quantile = batch_quantile_;
}

void ModelRuntime::take() {
  if (taken_.exchange(true)) fail("an engine runs on this runtime already: one has room for many requests");
}

BatcherOptions ModelRuntime::engine_options() const {
  BatcherOptions options;
  options.budgets = budgets_.get();
  if (budget_ && method()) options.budget = static_cast<float>(*budget_);
  options.harm_order = harm_order_;
  return options;
}

const Tokenizer& ModelRuntime::tokenizer() const {
  if (model().tokenizer) return *model().tokenizer;
  fail("{}: there is no tokenizer with this model", printable(model().path));
}

}  // namespace fathom
