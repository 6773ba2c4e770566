// A method, or a composition of several, as the policy that the model asks.
#pragma once

#include "skip/method.h"

namespace fathom {

enum class KvRule : uint8_t { kMethod, kProject, kCopy, kHide };
enum class Objective : uint8_t { kCe, kDistill };
enum class ShareRule : uint8_t { kFixed, kFalling, kSampled };
enum class StartRule : uint8_t { kPaper, kHarmOrder };
enum class SkippedBranch : uint8_t { kCompute, kDrop };
std::span<const std::string_view> enum_names(KvRule);         // "method", "project", "copy", "hide"
std::span<const std::string_view> enum_names(Objective);      // "ce", "distill"
std::span<const std::string_view> enum_names(ShareRule);      // "fixed", "falling", "sampled"
std::span<const std::string_view> enum_names(StartRule);      // "paper", "harm_order"
std::span<const std::string_view> enum_names(SkippedBranch);  // "compute", "drop"

// The options of every method.
struct SkipOptions {
  std::string score, decide, blend, objective_of;  // a method's name: that one answers; "": the method itself
  KvRule skipped_kv = KvRule::kMethod, train_skipped_kv = KvRule::kMethod;
  Objective objective = Objective::kCe;
  ShareRule share = ShareRule::kFixed;
  float share_start = 1.0f, share_end = 0.8f;
  std::vector<float> share_grid{1.0f, 0.9f, 0.8f, 0.7f, 0.6f, 0.5f};
  std::vector<int32_t> protect;
  StartRule init = StartRule::kPaper;
  SkippedBranch st_skipped = SkippedBranch::kCompute;
  bool frozen_backbone = false;

  template <class V>
  void visit(V& v) {
    v("score", score, "the method that rates the rows, if not the method itself");
    v("decide", decide, "the method that decides which rows run, if not the method itself");
    v("blend", blend, "the method that blends the output, if not the method itself");
    v("objective_of", objective_of, "the method whose penalty is trained with, if not the method itself");
    v("skipped_kv", skipped_kv, "what later tokens see of a row that skipped attention");
    v("train_skipped_kv", train_skipped_kv, "the same in training");
    v("objective", objective, "ce: the next token; distill: KL to the same model at full depth");
    v("share", share,
      "how the kept share changes over training: fixed, falling from start to end, or sampled");
    v("share_start", share_start, "falling: the kept share at the first step");
    v("share_end", share_end, "fixed: the kept share; falling: at the last step");
    v("share_grid", share_grid, "sampled: the kept shares, one drawn for every step");
    v("protect", protect, "layers that never skip");
    v("init", init, "routers start as in the paper, or so that the harm order decides");
    v("st_skipped", st_skipped, "straight-through: compute skipped branches for their gradient, or drop it");
    v("frozen_backbone", frozen_backbone, "train the method's own tensors only");
  }
};

class MethodPolicy final : public SkipPolicy {
 public:
  // {"name": "gate_skip", "gate": "scalar", …}: the keys of SkipOptions, of the method, and (under its name)
  // of each other method that answers a question. Unknown ones are a UserError that begins with `where`.
  static std::unique_ptr<MethodPolicy> from_json(const std::string& json_text, const std::string& where);
  std::string to_json() const;  // every key

  const std::string& name() const { return name_; }
  bool is_dense() const { return name_ == "dense"; }  // there is nothing to keep beside the model
  SkipOptions& options() { return options_; }
  const SkipOptions& options() const { return options_; }
  std::vector<Field> fields();
  void check(const ModelConfig& config) const;
  // Of a recipe, before it trains: values that other ones silence are a UserError, and so is what
  // Method::check_training refuses. learns: weights besides the method's own are trained.
  void check_training(bool learns) const;
  void start_from_pretrained();  // as Method::start_from_pretrained, before parameters()

  // In a fixed order. The tensors are made, not yet filled (initialise() does).
  std::vector<MethodParameter> parameters(const ModelConfig& config);
  std::vector<MethodParameter> describe(const ModelConfig& config) const;  // the list alone: nothing is made
  void initialise(const ModelConfig& config, uint64_t seed);
  std::vector<float*> controllers();
  // Measures what the method starts from. start: false keeps its tensors and controllers as they are. kept:
  // as PrepareInput has it.
  void prepare(Context& ctx, const Model& model, std::span<const Batch> batches, bool start = true,
               const std::atomic<bool>* cancel = nullptr, Measurements* kept = nullptr);
  std::vector<std::string> measured() const;  // keys that prepare() fills where they are empty
  float share_at(int64_t step, int64_t steps, uint64_t seed) const;

  float threshold_weight(const ModelConfig& config, int64_t unit) const;  // as Method::threshold_weight

  // As Method::list, without the units of protected layers, which always run.
  UnitList list(const ModelConfig& config) const;
  bool opens_fully() const { return decide_->traits().opens_fully; }
  bool fixed_list() const { return decide_->traits().fixed_list; }
  // Of the method that decides, as MethodTraits has them.
  bool steers() const { return decide_->traits().steers; }
  bool keeps_density() const { return decide_->traits().keeps_density; }
  const char* own_rule() const { return decide_->traits().own_rule; }
  bool own_rule_skips() const { return decide_->traits().own_rule_skips; }
  bool has_batch_quantile() const { return decide_->traits().batch_quantile; }
  // Of a row that skips attention in this layer.
  SkippedKv skipped_kv(bool training, const ModelConfig& config, int64_t layer) const;

  // Task's loss (ce, distill, or the method's own) plus the method's penalty. Returns f32 (1).
  Tensor loss(Context& ctx, const LossInput& input) const;
  void observe(Context& ctx, SkipState& state, int64_t part);
  void adjust(Context& ctx, const ModelConfig& config, std::span<const Tensor> gradients);
  std::vector<Tensor> figures(Context& ctx);
  void after_step(std::span<const float> figures);
  // Is there something to fit once everything else has learned? finish() does it, and returns what there is
  // to say about it.
  bool fits_at_end() const;
  std::vector<std::string> finish(Context& ctx, const Model& model, std::span<const Batch> batches,
                                  const std::atomic<bool>* cancel = nullptr);

  std::unique_ptr<PolicyState> make_state(Context& ctx, const ModelConfig& config,
                                          int64_t sequences) const override;
  bool has_key_bias() const override;
  bool copies_kv(const ModelConfig& config) const override;
  bool needs_whole_prompt() const override { return score_->traits().needs_whole_prompt; }
  bool resumes() const override;
  void begin(Context& ctx, const Model& model, const Batch& batch, PolicyState& state) const override;
  Decision decide(Context& ctx, const UnitInput& input, PolicyState& state) const override;
  void join(Context& ctx, const UnitInput& input, const Decision& decision, const Tensor& branch, Tensor& h,
            PolicyState& state) const override;
  bool only_adds() const override { return is_dense() && options_.blend.empty(); }
  void after_block(Context& ctx, const UnitInput& input, Tensor& h, PolicyState& state) const override;

 private:
  struct Part {
    std::string name;
    std::unique_ptr<Method> method;
    size_t figures = 0;  // how many the step's last figures() gave
  };
  MethodPolicy() = default;
  Method& part(const std::string& wanted) const;
  bool is_protected(int64_t layer) const;
  bool may_skip(const UnitInput& input, Units units) const;
  RowSet choose(UnitCall& call, const Decision& decision) const;
  KvRule kv_rule(bool training) const { return training ? options_.train_skipped_kv : options_.skipped_kv; }
  void mask_block(UnitCall& call, const Decision& decision, Tensor& h) const;
  // Training learns one mask over the whole block, h + M · (A + F), rather than one over each branch.
  bool masks_block(const SkipState& state) const {
    const MethodTraits traits = decide_->traits();
    return state.training && traits.straight_through && traits.units == Units::kBlock;
  }

  std::string name_;
  SkipOptions options_;
  std::vector<Part> parts_;  // the method first, then the others that answer something
  Method *score_ = nullptr, *decide_ = nullptr, *blend_ = nullptr, *objective_ = nullptr;
};

}  // namespace fathom
