// A model that is ready to run: what every verb that runs one builds from its options.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/budget_tables.h"
#include "cli/options.h"
#include "infer/draft.h"
#include "infer/feeder.h"
#include "model/load.h"
#include "skip/adapter.h"

namespace fathom {

// The model's files found and loaded on a context of the wanted device and threads.
struct LoadedModel {
  std::unique_ptr<Context> ctx;
  Model model;
  double load_seconds = 0;
};
LoadedModel load_from_options(const ModelOptions& options);
// The same with its weights arranged for this machine's products: it will run, and not be written.
LoadedModel load_to_run(const ModelOptions& options);

class Session {
 public:
  explicit Session(const ModelOptions& options);

  // The cache, made once it is known how many tokens will come: no longer than the context that was asked for
  // (or the model's). `tokens` < 0: all of it.
  void make_cache(int64_t tokens = -1, int64_t sequences = 1);

  // Before make_cache(): its sequences can draft.
  Speculation use_drafts(DraftOptions options);

  Context& ctx() { return *loaded_.ctx; }
  const Model& model() const { return loaded_.model; }
  const Tokenizer& tokenizer() const;  // none: a UserError that says what to give
  int64_t context() const { return context_; }
  double load_seconds() const { return loaded_.load_seconds; }
  Feeder& feeder() { return *feeder_; }
  const KvCacheOptions& cache_options() const { return cache_options_; }
  const MethodPolicy* method() const { return adapter_.policy.get(); }  // null: a dense model
  const Adapter& adapter() const { return adapter_; }
  const std::string& adapter_folder() const { return folder_; }
  double budget() const { return budget_; }  // 1 also where the method's own rule decides
  const std::vector<float>& thresholds() const { return thresholds_; }  // (2L) of the budget; empty: none

 private:
  void load_method(const ModelOptions& options);
  const BudgetTables& tables();
  const SkipPolicy& verifier() const { return method() ? static_cast<const SkipPolicy&>(*method()) : dense_; }

  LoadedModel loaded_;
  int64_t context_;
  KvCacheOptions cache_options_;
  DensePolicy dense_;
  Adapter adapter_;
  std::string folder_;                  // of the adapter
  bool own_ = false;                    // it is the model's
  std::optional<BudgetTables> tables_;  // of the adapter, once somebody asked
  double budget_ = 1;
  std::unique_ptr<SpeculativePolicy> speculative_;
  bool masked_ = false, batch_quantile_ = false;
  std::vector<float> thresholds_;  // of the budget; empty: the method's own rule
  std::unique_ptr<PolicyState> state_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Feeder> feeder_;
};

// The whole of a text file, or of stdin for "-".
std::string read_input(const std::string& path);

// A JSON list of token ids, each in [0, vocab). A UserError names the file and the first entry that is not.
std::vector<int32_t> read_ids(const std::string& path, int64_t vocab);

}  // namespace fathom
