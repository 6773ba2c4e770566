// A model that is ready to run: its files found and loaded, its method with its budgets, its cache.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "infer/batcher_options.h"
#include "infer/draft.h"
#include "infer/quality.h"
#include "infer/sequences.h"
#include "infer/trained_rule.h"
#include "model/load.h"
#include "model/merge_lora.h"

namespace fathom {

// A model's files, and where and as what they are loaded.
struct LoadRequest {
  std::string model, tokenizer = {};  // tokenizer: "": the model's own
  ContextOptions where = {};
  std::optional<DType> weights = {};  // none: as stored
  bool map_file = true;               // or read it
};

struct LoadedModel {
  std::unique_ptr<Context> ctx;
  Model model;
  double load_seconds = 0;
};
LoadedModel load_named(const LoadRequest& source);
// The same with its weights arranged for this machine's products: it will run, and not be written.
LoadedModel load_to_run(const LoadRequest& source);

class ModelRuntime {
 public:
  struct Options {
    LoadRequest source;
    std::string adapter = {};                       // a folder; "": the model's own method, if it has one
    bool force_adapter = false;                     // past a base that does not fit
    LoraMode lora_mode = LoraMode::kMerge;          // what is done with the adapter's LoRA, if it has one
    bool dense = false;                             // the model's own method is left out
    std::optional<DType> k_type = {}, v_type = {};  // none: f16, or f32 with f32 weights
    int64_t context = 0;                            // 0: the model's
    // None: the method's own rule. The quality, where there is one, chooses the budget.
    std::optional<double> budget = {};
    std::optional<QualityLimit> quality = {};
    bool masked = false;          // everything is computed and masked
    bool batch_quantile = false;  // GateSkip's rule as printed
  };
  // Options that do not go with the model are a UsageError.
  explicit ModelRuntime(const Options& options);

  // Makes the cache, once it is known how many tokens will come: no longer than the context that was asked
  // for (or the model's). `tokens` < 0: all of it. `pass_rows`: KvCacheOptions::pass_rows. `bytes`: of keys
  // and values at most, 0: as many as full contexts need; too few for one page a layer is a UserError.
  void make_cache(int64_t tokens = -1, int64_t sequences = 1, int64_t pass_rows = 0, int64_t bytes = 0);

  // Before make_cache(): its sequences can draft. Measures the harm order where drafts of that kind are
  // wanted; when `cancel` is set, that ends with PrepareCancelled. What makes no sense is a UsageError.
  // Returns the kind of drafts; none: whichever pays.
  std::optional<DraftKind> use_drafts(const DraftOptions& options, const std::atomic<bool>* cancel = nullptr);

  bool drafts_by_model() const { return speculative_ != nullptr; }

  // feeder() is one engine's at a time: a second take() before give_back() is a UserError.
  void take();
  void give_back() { taken_ = false; }

  // What an engine over feeder() is told: the budgets, the default budget and the harm order.
  BatcherOptions engine_options() const;

  Context& ctx() { return *loaded_.ctx; }
  const Model& model() const { return loaded_.model; }
  const Tokenizer& tokenizer() const;  // none: a UserError
  int64_t context() const { return context_; }
  double load_seconds() const { return loaded_.load_seconds; }
  Feeder& feeder() { return sequences_->feeder(); }
  const KvCacheOptions& cache_options() const { return cache_options_; }
  const MethodPolicy* method() const { return adapter_.policy.get(); }  // null: a dense model
  const Adapter& adapter() const { return adapter_; }
  bool has_lora() const { return has_lora_; }  // the weights are the base's with the adapter's LoRA
  const std::string& adapter_folder() const { return folder_; }
  const Budgets* budgets() const { return budgets_.get(); }  // never null
  double budget() const { return budget_.value_or(1); }      // 1 also where the method's own rule decides
  bool has_budget() const { return budget_.has_value(); }
  const TrainedRule* trained_rule() const { return trained_ ? &*trained_ : nullptr; }  // null: none is stored
  // (2L) of the budget, or else of trained_rule(); empty: none.
  const std::vector<float>& thresholds() const { return thresholds_; }

 private:
  void load_method(const Options& options);
  void take_lora(LoraMode mode);
  int64_t pages_in(int64_t bytes) const;
  const SkipPolicy& verifier() const { return method() ? static_cast<const SkipPolicy&>(*method()) : dense_; }

  LoadedModel loaded_;
  int64_t context_;
  KvCacheOptions cache_options_;
  DensePolicy dense_;
  Adapter adapter_;
  std::string folder_;  // of the adapter
  bool has_lora_ = false;
  std::unique_ptr<Budgets> budgets_ = std::make_unique<Budgets>();
  std::optional<double> budget_;
  std::optional<TrainedRule> trained_;
  std::unique_ptr<SpeculativePolicy> speculative_;
  bool masked_, batch_quantile_;
  std::vector<float> thresholds_;
  std::vector<int32_t> harm_order_;
  std::unique_ptr<Sequences> sequences_;
  std::atomic<bool> taken_ = false;
};

}  // namespace fathom
