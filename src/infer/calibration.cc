// The tables of budgets: what lies between two points, and their JSON.
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "infer/calibrate.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

float number(const Json& json, const char* key, const std::string& where) {
  if (!json.is_object() || !json.contains(key) || !json[key].is_number())
    fail("{}: a calibration point needs a number '{}'", where, key);
  const auto value = json[key].get<float>();
  if (!std::isfinite(value))
    fail("{}: '{}' must be a finite number, got {}", where, key, printable(json[key].dump()));
  return value;
}

CalibrationPoint point_from(const Json& json, int64_t units, const std::string& where) {
  CalibrationPoint point;
  point.budget = number(json, "budget", where);
  point.achieved = json.contains("achieved") ? number(json, "achieved", where) : NAN;
  if (json.contains("checked")) point.checked = number(json, "checked", where);
  if (json.contains("held")) point.held = number(json, "held", where);
  if (point.held < 0 || point.held > 1)
    fail("{}: 'held' must be a share from 0 to 1, got {:g}", where, point.held);
  if (!(point.budget > 0 && point.budget <= 1))
    fail("{}: a calibrated budget must be above 0 and at most 1, got {:g}", where, point.budget);
  const Json thresholds = json.value("thresholds", Json());
  if (!thresholds.is_array() || static_cast<int64_t>(thresholds.size()) != units)
    fail("{}: a calibration point needs {} thresholds, got {}", where, units,
         thresholds.is_array() ? std::to_string(thresholds.size()) : "none");
  for (const Json& value : thresholds) {
    if (!value.is_number() && !value.is_null()) fail("{}: a threshold must be a number or null", where);
    point.thresholds.push_back(value.is_null() ? -INFINITY : value.get<float>());
    if (!value.is_null() && !std::isfinite(point.thresholds.back()))
      fail("{}: a threshold must be a finite number, got {}", where, printable(value.dump()));
  }
  return point;
}

}  // namespace

std::vector<float> Calibration::thresholds(float budget) const {
  if (points.empty()) fail("the calibration table is empty");
  constexpr float kSame = 1e-6f;
  const CalibrationPoint &most = points.front(), &least = points.back();
  if (budget < least.budget - kSame)
    fail("a budget of {:g} is below the smallest of the calibration table, {:g}", budget, least.budget);
  if (budget > most.budget + kSame)
    fail("a budget of {:g} is above the largest of the calibration table, {:g}", budget, most.budget);
  if (budget >= 1) return std::vector<float>(most.thresholds.size(), -INFINITY);
  size_t at = 0;
  while (points[at].budget > budget + kSame) ++at;
  if (at == 0) return most.thresholds;
  const CalibrationPoint &above = points[at - 1], &below = points[at];
  const float place = (above.budget - budget) / (above.budget - below.budget);
  std::vector<float> mixed(above.thresholds.size());
  for (size_t i = 0; i < mixed.size(); ++i) {
    const bool never = !std::isfinite(above.thresholds[i]) || !std::isfinite(below.thresholds[i]);
    mixed[i] = never ? above.thresholds[i]
                     : above.thresholds[i] + place * (below.thresholds[i] - above.thresholds[i]);
  }
  return mixed;
}

std::vector<CalibrationPoint> Calibration::asked() const {
  std::vector<CalibrationPoint> out;
  for (size_t i = 1; i < points.size(); ++i) {
    if (std::isfinite(points[i].achieved)) out.push_back(points[i]);
  }
  return out;
}

std::vector<Calibration> calibrations_from_json(const std::string& text, int64_t units,
                                                const std::string& where) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) fail("{}: the calibration must be a JSON object", where);
  std::vector<Calibration> tables;
  for (const auto& [type, points] : json.items()) {
    if (!points.is_array() || points.empty())
      fail("{}: the calibration of '{}' must be a list", where, printable(type));
    Calibration table;
    table.weight_type = type;
    for (const Json& point : points) {
      table.points.push_back(point_from(point, units, where));
      const size_t last = table.points.size() - 1;
      if (last > 0 && table.points[last].budget >= table.points[last - 1].budget)
        fail("{}: calibrated budgets must fall, got {:g} after {:g}", where, table.points[last].budget,
             table.points[last - 1].budget);
    }
    tables.push_back(std::move(table));
  }
  return tables;
}

std::string calibrations_to_json(std::span<const Calibration> tables) {
  Json json = Json::object();
  for (const Calibration& table : tables) {
    Json points = Json::array();
    for (const CalibrationPoint& point : table.points) {
      Json thresholds = Json::array();
      for (const float value : point.thresholds)
        thresholds.push_back(std::isfinite(value) ? Json(value) : Json(nullptr));
      Json one{{"budget", point.budget}};
      if (std::isfinite(point.achieved)) one["achieved"] = point.achieved;
      if (std::isfinite(point.checked)) one["checked"] = point.checked;
      if (std::isfinite(point.held)) one["held"] = point.held;
      one["thresholds"] = thresholds;
      points.push_back(one);
    }
    json[table.weight_type] = points;
  }
  return json.dump();
}

}  // namespace fathom
