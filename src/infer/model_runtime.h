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
#include "model/load.h"

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
  // for (or the model's). `tokens` < 0: all of it.
  void make_cache(int64_t tokens = -1, int64_t sequences = 1);

  // Before make_cache(): its sequences can draft. Measures the harm order where drafts of that kind are
  // wanted. What makes no sense is a UsageError. Returns the kind of drafts.
  DraftKind use_drafts(const DraftOptions& options);

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
  const std::string& adapter_folder() const { return folder_; }
  const Budgets* budgets() const { return budgets_.get(); }  // null: a dense model
  double budget() const { return budget_.value_or(1); }      // 1 also where the method's own rule decides
  const std::vector<float>& thresholds() const { return thresholds_; }  // (2L) of the budget; empty: none

 private:
  void load_method(const Options& options);
  const SkipPolicy& verifier() const { return method() ? static_cast<const SkipPolicy&>(*method()) : dense_; }

  LoadedModel loaded_;
  int64_t context_;
  KvCacheOptions cache_options_;
  DensePolicy dense_;
  Adapter adapter_;
  std::string folder_;  // of the adapter
  std::unique_ptr<Budgets> budgets_;
  std::optional<double> budget_;
  std::unique_ptr<SpeculativePolicy> speculative_;
  bool masked_, batch_quantile_;
  std::vector<float> thresholds_;
  std::vector<int32_t> harm_order_;
  std::unique_ptr<Sequences> sequences_;
  std::atomic<bool> taken_ = false;
};

}  // namespace fathom
