// Optimisers over the flat buffers, on the device that holds them (ops/optimizer). Results do not depend on
// the number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "train/parameters.h"

namespace fathom {

enum class OptimizerKind : uint8_t { kAdamW, kAdafactor };
std::span<const std::string_view> enum_names(OptimizerKind);  // "adamw", "adafactor"

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kAdamW;
  float beta1 = 0.9f, beta2 = 0, eps = 0;
  float weight_decay = 0.0f;
  // Adafactor alone:
  float beta2_power = 0, update_clip = 1.0f;
  bool scale_by_size = true;

  template <class V>
  void visit(V& v) {
    v("kind", kind, "adamw, or adafactor (a matrix's second moments as a row and a column)");
    v("beta1", beta1, "decay of the mean gradient; adafactor keeps none where it is 0");
    v("beta2", beta2, "decay of the mean square; 0: 0.95 (adamw), 0.99 (adafactor)");
    v("eps", eps,
      "added to the root of the mean square (adamw) or to the square (adafactor); 0: 1e-8, 1e-30");
    v("weight_decay", weight_decay, "decoupled, on matrices only");
    v("beta2_power", beta2_power,
      "adafactor: beta2 is 1 - step^-power instead of a number; 0: it is a number");
    v("update_clip", update_clip, "adafactor: the largest root mean square of a tensor's update");
    v("scale_by_size", scale_by_size,
      "adafactor: a tensor's step is the rate times its root mean square, at least 1e-3");
  }
};

struct OptimizerStep {
  double rate = 0;            // the learning rate
  float gradient_factor = 1;  // multiplies every gradient: what clipping leaves of it
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // One step, from the gradients as they are. The bf16 copies are refreshed. Nothing is waited for.
  void step(Context& ctx, ParameterSet& parameters, const OptimizerStep& step);
  int64_t steps() const { return steps_; }

  std::vector<NamedTensor> state() const;  // views, on the parameters' device
  // From a checkpoint, whose tensors are on the CPU; one that is missing or does not fit is a UserError that
  // starts with `where`.
  void load(Context& ctx, std::span<const NamedTensor> state, int64_t steps, const std::string& where);

 protected:
  explicit Optimizer(const OptimizerConfig& config) : config_(config) {}
  virtual void update(Context& ctx, ParameterSet& parameters, const OptimizerStep& step) = 0;
  void add_state(const std::string& name, const ParameterSet& parameters, int64_t size);  // f32, zeros

  OptimizerConfig config_;
  int64_t steps_ = 0;
  std::vector<NamedTensor> state_;
};

// A value that makes no sense, or that another one silences, is a UserError that names the key.
void check_optimizer(const OptimizerConfig& config);

// What the config leaves to the kind of optimiser is filled in.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config, const ParameterSet& parameters);
std::unique_ptr<Optimizer> make_adamw(const OptimizerConfig& config, const ParameterSet& parameters);
std::unique_ptr<Optimizer> make_adafactor(const OptimizerConfig& config, const ParameterSet& parameters);

}  // namespace fathom
