// Turns the budget of an answer, or of a draft by the method, into thresholds. Only this class does.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "infer/calibrate.h"
#include "skip/adapter.h"

namespace fathom {

struct QualityLimit;

// A budget was asked for, and the method has no table.
class NoCalibration : public UserError {
 public:
  using UserError::UserError;
};

// Refuses what is not above 0 and at most 1.
void check_budget(double budget);

class Budgets {
 public:
  // For a dense model. It runs everything: a budget of 1 gives no thresholds, any other is an error.
  Budgets() : dense_(true) {}
  // The tables of a method's adapter. `name` begins the errors. A broken table is a UserError.
  Budgets(const Model& model, const Adapter& adapter, std::string name);
  // One table for the weights that run.
  explicit Budgets(Calibration table);

  bool empty() const { return tables_.empty() && list_.order.empty(); }
  // Returns the table of the model's weight type or, with a warning, of another one. Without any it throws
  // NoCalibration, with the budget that the table is wanted for.
  const Calibration& table_for(double budget) const;
  // Returns the budgets that were calibrated for, falling; of another weight type where this one has none.
  std::vector<float> calibrated() const;
  // Returns (2L) thresholds; of a dense model, none. A budget of 1 needs no table where the method can run
  // everything. One that the table or the list does not hold is OutOfReach.
  std::vector<float> thresholds(double budget) const;
  // Returns the smallest budget that keeps a measured quality. None: a UserError with what there is.
  double budget_for(const QualityLimit& quality) const;

 private:
  std::vector<Calibration> tables_;
  std::string weight_type_, name_;
  UnitList list_;  // of a method whose budgets need no table
  bool dense_ = false;
  bool opens_fully_ = false;
  int64_t units_ = 0;
  mutable std::atomic<bool> warned_ = false;  // that the table is for other weights
};

}  // namespace fathom
