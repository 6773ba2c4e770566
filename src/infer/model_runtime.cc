#include "infer/model_runtime.h"

#include <algorithm>

#include "base/clock.h"
#include "base/format.h"
#include "base/log.h"
#include "base/system_memory.h"
#include "infer/model_path.h"
#include "infer/speculative_policy.h"

namespace fathom {
namespace {

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
    try {
      if (options.quality) budgets_->budget_for(*options.quality);
      budgets_->thresholds(budget());
    } catch (const UserError& error) {
      throw UsageError(error.what());
    }
    if (masked_) refuse("masked execution needs decisions to mask; {}", why);
    if (batch_quantile_) refuse("batch_quantile needs scores to decide on; {}", why);
    return;
  }
  // A model's own method fits it; its thresholds do not where it was given another tokenizer.
  const bool has_budget = options.budget || options.quality;
  adapter_ = load_adapter(ctx(), folder_, model(), options.force_adapter || (own && !has_budget));
  if (adapter_.lora.any()) take_lora(options.lora_mode);
  budgets_ = std::make_unique<Budgets>(model(), adapter_, folder_);
  if (options.quality) budget_ = budgets_->budget_for(*options.quality);
  if (!adapter_.extra.trained.empty())
    trained_ = trained_rule_from_json(adapter_.extra.trained, 2 * model().config.layers, printable(folder_));
  if (budget_) thresholds_ = budgets_->thresholds(*budget_);
  if (!budget_ && trained_) thresholds_ = trained_->thresholds;
  if (batch_quantile_ && !method()->has_batch_quantile())
    refuse("batch_quantile is gate_skip's rule; this is {}, which has no such rule", method()->name());
}

// The weights become the adapted model's: a budget of 1 is that model.
void ModelRuntime::take_lora(LoraMode mode) {
  if (mode == LoraMode::kMerge)
    merge_lora(ctx(), loaded_.model, adapter_.lora, folder_);
  else
    attach_lora(ctx(), loaded_.model, adapter_.lora);
  adapter_.lora = {};
  has_lora_ = true;
}

std::optional<DraftKind> ModelRuntime::use_drafts(const DraftOptions& options,
                                                  const std::atomic<bool>* cancel) {
  if (masked_ || batch_quantile_)
    refuse("speculation runs what it decides: it goes neither with masked execution nor with batch_quantile");
  if (method() && method()->needs_whole_prompt())
    refuse(
        "speculation takes tokens back, and {} as it is configured decides on the whole of what it was fed",
        method()->name());
  const bool calibrated = !budgets_->empty();
  if (options.vocab > model().config.vocab)
    refuse("drafts are drawn from at most the {} tokens of the model's vocabulary, got {}",
           model().config.vocab, options.vocab);
  const std::optional<DraftKind> kind = draft_kind(options, calibrated);
  if (kind == DraftKind::kMethod) {
    if (!method())
      refuse("a draft by the method needs an adapter with a calibration table: this is a dense model");
    if (options.budget >= budget())
      refuse("the drafts' budget must be below the budget of {:g}, got {:g}", budget(), options.budget);
  }
  if (kind == DraftKind::kHarmOrder) harm_order_ = measure_harm_order(ctx(), model(), cancel);
  const bool by_model = kind ? kind != DraftKind::kLookup : calibrated && options.budget < budget();
  if (by_model) speculative_ = std::make_unique<SpeculativePolicy>(verifier());
  return kind;
}

// Pages that fit, but no more than full contexts need.
int64_t ModelRuntime::pages_in(int64_t bytes) const {
  const ModelConfig& config = model().config;
  const auto bytes_of = [&](DType type) { return row_bytes(type, config.head_dim) * config.kv_heads; };
  const int64_t entry = bytes_of(cache_options_.k_type) + bytes_of(cache_options_.v_type);
  const int64_t pages = bytes / (KvCache::kPage * entry);
  if (pages < config.layers)
    fail("the cache needs {} bytes at least, a page for each layer, got {}",
         config.layers * KvCache::kPage * entry, bytes);
  const int64_t whole = KvCache::pages_for_rows(config, cache_options_.context, cache_options_.pass_rows) *
                        cache_options_.sequences;
  return std::min(pages, whole);
}

void ModelRuntime::make_cache(int64_t tokens, int64_t sequences, int64_t pass_rows, int64_t bytes) {
  cache_options_.sequences = sequences;
  cache_options_.context = tokens < 0 ? context_ : std::clamp<int64_t>(tokens, 1, context_);
  // Where layers list each other's entries, none of a window's pages goes back.
  const bool keeps_all = method() && (method()->needs_whole_prompt() || method()->copies_kv(model().config));
  cache_options_.pass_rows = keeps_all ? 0 : pass_rows;
  cache_options_.pages = bytes > 0 ? pages_in(bytes) : 0;
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
  if (!budget_) options.thresholds = thresholds_;
  options.harm_order = harm_order_;
  return options;
}

const Tokenizer& ModelRuntime::tokenizer() const {
  if (model().tokenizer) return *model().tokenizer;
  fail("{}: there is no tokenizer with this model", printable(model().path));
}

}  // namespace fathom
