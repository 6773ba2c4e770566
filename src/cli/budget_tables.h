// The thresholds of an adapter's budgets.
#pragma once

#include <string>
#include <vector>

#include "infer/quality.h"
#include "skip/adapter.h"

namespace fathom {

class BudgetTables {
 public:
  // `folder`: where the adapter lies; `own`: beside the model itself. A broken table is a UserError.
  BudgetTables(const Model& model, const Adapter& adapter, std::string folder, bool own);

  bool empty() const { return tables_.empty(); }
  // The table of the model's weight type or, with a warning, of another. None: a UserError that says how to
  // make one. `budget`: that it is wanted for.
  const Calibration& for_budget(double budget) const;
  std::vector<float> thresholds(double budget) const;  // (2L)
  // The smallest budget that keeps a measured quality; none: a UserError with what there is.
  double budget_for(const QualityLimit& quality) const;

 private:
  std::vector<Calibration> tables_;
  std::string weight_type_, model_, folder_;
  bool own_, opens_fully_;
  int64_t units_;
};

}  // namespace fathom
