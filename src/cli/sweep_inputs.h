// The models, adapters and thresholds of a sweep.
#pragma once

#include <deque>
#include <optional>

#include "cli/session.h"
#include "eval/sweep.h"
#include "infer/budgets.h"

namespace fathom {

struct SweepChoice {
  ModelOptions model;
  std::vector<std::string> adapters, also;
  std::vector<std::optional<double>> asked;  // budgets; none: the method's own rule
};

// "routers" of runs/routers; of a run's checkpoint, the run's.
std::string label_of(const std::string& path);

// Everything loaded, and the methods of the plan, which refer to it.
class SweepInputs {
 public:
  explicit SweepInputs(const SweepChoice& choice);

  Session& base() { return sessions_.front(); }
  int64_t context() const;  // of the shortest
  bool has_other_dense() const;
  // Labels of the adapters that have a LoRA.
  const std::vector<std::string>& with_lora() const { return with_lora_; }

  SweepPlan plan;

 private:
  std::string unique_label(const std::string& wanted) const;
  void add_model(const std::string& path, bool dense = false);  // dense: without its own method
  void add_adapter(const std::string& folder);
  void add_budgets(SweepMethod& method, const Budgets& budgets, const std::vector<float>& unasked);
  void add_method(const std::string& label, const SweepModel& model, const Adapter& adapter,
                  const std::string& folder, bool own);

  const SweepChoice& choice_;
  std::deque<Session> sessions_;
  std::deque<SweepModel> models_;
  std::deque<Adapter> adapters_;
  std::vector<std::string> with_lora_;
};

}  // namespace fathom
