#include "cli/budget_tables.h"

#include <cmath>

#include "base/format.h"
#include "base/log.h"

namespace fathom {

BudgetTables::BudgetTables(const Model& model, const Adapter& adapter, std::string folder, bool own)
    : tables_(calibrations_from_json(adapter.extra.calibration, 2 * model.config.layers, printable(folder))),
      weight_type_(weight_type_name(model)),
      model_(model.path),
      folder_(std::move(folder)),
      own_(own),
      opens_fully_(adapter.policy->opens_fully()),
      units_(2 * model.config.layers) {}

const Calibration& BudgetTables::for_budget(double budget) const {
  if (empty()) {
    const std::string beside = own_ ? "" : fmt::format(" --adapter {}", printable(folder_));
    fail("{}: a budget of {:g} needs a calibration table: make one with fathom calibrate -m {}{} --data FILE",
         printable(folder_), budget, printable(model_), beside);
  }
  for (const Calibration& table : tables_) {
    if (table.weight_type == weight_type_) return table;
  }
  log_warn(fmt::format("{} was calibrated for {} weights, not {}: the budget will be met less exactly",
                       printable(folder_), printable(tables_.front().weight_type), weight_type_));
  return tables_.front();
}

double BudgetTables::budget_for(const QualityLimit& quality) const {
  return static_cast<double>(for_budget(1).budget_for(quality.measure, quality.limit));
}

std::vector<float> BudgetTables::thresholds(double budget) const {
  if (budget == 1 && opens_fully_) return std::vector<float>(static_cast<size_t>(units_), -INFINITY);
  return for_budget(budget).thresholds(static_cast<float>(budget));
}

}  // namespace fathom
