#include "infer/budgets.h"

#include <cmath>

#include "base/format.h"
#include "base/log.h"
#include "infer/quality.h"

namespace fathom {
namespace {

constexpr const char* kDense =
    "an adapter with a calibration table; this is a dense model without a skipping method, which runs "
    "everything";

constexpr double kFarOff = 0.05;  // as calibrate refuses a budget that is missed by more

}  // namespace

void check_budget(double budget) {
  if (!(budget > 0 && budget <= 1)) fail("a budget must be above 0 and at most 1, got {:g}", budget);
}

Budgets::Budgets(const Model& model, const Adapter& adapter, std::string name)
    : tables_(calibrations_from_json(adapter.extra.calibration, 2 * model.config.layers, printable(name))),
      weight_type_(weight_type_name(model)),
      name_(std::move(name)),
      list_(adapter.policy->list(model.config)),
      opens_fully_(adapter.policy->opens_fully()),
      units_(2 * model.config.layers) {}

Budgets::Budgets(Calibration table)
    : tables_({std::move(table)}),
      weight_type_(tables_.front().weight_type),
      name_("the calibration"),
      opens_fully_(false),
      units_(std::ssize(tables_.front().points.front().thresholds)) {}

const Calibration& Budgets::table_for(double budget) const {
  if (tables_.empty())
    throw NoCalibration(
        fmt::format("{}: a budget of {:g} needs a calibration table", printable(name_), budget));
  for (const Calibration& table : tables_) {
    if (table.weight_type == weight_type_) return table;
  }
  if (!warned_.exchange(true))
    log_warn(fmt::format("{} was calibrated for {} weights, not {}: the budget will be met less exactly",
                         printable(name_), printable(tables_.front().weight_type), weight_type_));
  return tables_.front();
}

std::vector<float> Budgets::calibrated() const {
  std::vector<float> budgets;
  if (tables_.empty()) return budgets;
  const Calibration* table = &tables_.front();
  for (const Calibration& each : tables_) {
    if (each.weight_type == weight_type_) table = &each;
  }
  for (const CalibrationPoint& point : table->asked()) budgets.push_back(point.budget);
  return budgets;
}

double Budgets::budget_for(const QualityLimit& quality) const {
  if (dense_) fail("a bound on {} needs {}", quality.measure, kDense);
  return static_cast<double>(table_for(1).budget_for(quality.measure, quality.limit));
}

std::vector<float> Budgets::thresholds(double budget) const {
  check_budget(budget);
  if (dense_ && budget == 1) return {};
  if (dense_) fail("a budget of {:g} needs {}", budget, kDense);
  if (budget == 1 && opens_fully_) return std::vector<float>(static_cast<size_t>(units_), -INFINITY);
  if (tables_.empty() && !list_.order.empty()) {
    if (budget < list_.left.back() - kFarOff)
      throw OutOfReach(
          fmt::format("a budget of {:g} is out of reach: {:.3g} runs when every unit of the list is left out",
                      budget, list_.left.back()));
    return list_.thresholds(budget, units_);
  }
  return table_for(budget).thresholds(static_cast<float>(budget));
}

}  // namespace fathom
