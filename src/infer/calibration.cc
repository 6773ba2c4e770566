// The tables of budgets: what lies between two points, and their JSON.
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "infer/calibrate.h"
#include "ops/rows/steer_rows.h"

namespace fathom {
namespace {

using OrderedJson = nlohmann::ordered_json;

float number(const OrderedJson& json, const char* key, const std::string& where) {
  if (!json.is_object() || !json.contains(key) || !json[key].is_number())
    fail("{}: a calibration point needs a number '{}'", where, key);
  const auto value = json[key].get<float>();
  if (!std::isfinite(value))
    fail("{}: '{}' must be a finite number, got {}", where, key, printable(json[key].dump()));
  return value;
}

// Older tables have no starts.
std::vector<float> steering_from(const OrderedJson& json, int64_t units, const std::string& where) {
  const int64_t wanted = (kSteeringParts - 1) * units;
  if (!json.is_array() || (std::ssize(json) != wanted && std::ssize(json) != wanted - units))
    fail("{}: 'steering' of a calibration point needs {} numbers, got {}", where, wanted,
         json.is_array() ? std::to_string(json.size()) : "none");
  std::vector<float> steering;
  for (const OrderedJson& value : json)
    steering.push_back(number(OrderedJson{{"steering", value}}, "steering", where));
  steering.resize(static_cast<size_t>(wanted));
  return steering;
}

CalibrationPoint point_from(const OrderedJson& json, int64_t units, const std::string& where) {
  CalibrationPoint point;
  point.budget = number(json, "budget", where);
  point.achieved = json.contains("achieved") ? number(json, "achieved", where) : NAN;
  if (json.contains("checked")) point.checked = number(json, "checked", where);
  if (json.contains("held")) point.held = number(json, "held", where);
  if (point.held < 0 || point.held > 1)
    fail("{}: 'held' must be a share from 0 to 1, got {:g}", where, point.held);
  if (!(point.budget > 0 && point.budget <= 1))
    fail("{}: a calibrated budget must be above 0 and at most 1, got {:g}", where, point.budget);
  if (json.contains("kinds")) {
    if (!json["kinds"].is_array())
      fail("{}: 'kinds' of a calibration point must be a list of numbers", where);
    for (const OrderedJson& value : json["kinds"])
      point.of_kinds.push_back(number(OrderedJson{{"kinds", value}}, "kinds", where));
  }
  const OrderedJson thresholds = json.value("thresholds", OrderedJson());
  if (!thresholds.is_array() || static_cast<int64_t>(thresholds.size()) != units)
    fail("{}: a calibration point needs {} thresholds, got {}", where, units,
         thresholds.is_array() ? std::to_string(thresholds.size()) : "none");
  if (json.contains("steering")) point.steering = steering_from(json["steering"], units, where);
  for (const OrderedJson& value : thresholds) {
    if (!value.is_number() && !value.is_null()) fail("{}: a threshold must be a number or null", where);
    point.thresholds.push_back(value.is_null() ? -INFINITY : value.get<float>());
    if (!value.is_null() && !std::isfinite(point.thresholds.back()))
      fail("{}: a threshold must be a finite number, got {}", where, printable(value.dump()));
  }
  return point;
}

std::string text(const OrderedJson& json, const char* key, const std::string& where) {
  if (!json.is_object() || !json.contains(key) || !json[key].is_string())
    fail("{}: a calibration needs a text '{}'", where, key);
  return json[key].get<std::string>();
}

CalibratedQuality quality_from(const OrderedJson& json, const std::string& where) {
  CalibratedQuality quality{text(json, "measure", where), number(json, "limit", where),
                            number(json, "budget", where), number(json, "bound", where),
                            text(json, "kind", where)};
  if (!(quality.budget > 0 && quality.budget <= 1))
    fail("{}: a calibrated quality's budget must be above 0 and at most 1, got {:g}", where, quality.budget);
  return quality;
}

// Older tables are the list of points alone.
Calibration table_from(const std::string& type, const OrderedJson& json, int64_t units,
                       const std::string& where) {
  const OrderedJson points = json.is_object() ? json.value("points", OrderedJson()) : json;
  if (!points.is_array() || points.empty())
    fail("{}: the calibration of '{}' must be a list of points", where, printable(type));
  Calibration table;
  table.weight_type = type;
  for (const OrderedJson& point : points) {
    table.points.push_back(point_from(point, units, where));
    const size_t last = table.points.size() - 1;
    if (table.points[last].steering.empty() != table.points[0].steering.empty())
      fail("{}: either all points of a calibration are steered, or none", where);
    if (last > 0 && table.points[last].budget >= table.points[last - 1].budget)
      fail("{}: calibrated budgets must fall, got {:g} after {:g}", where, table.points[last].budget,
           table.points[last - 1].budget);
  }
  if (!json.is_object()) return table;
  const auto list = [&](const char* key) {
    const OrderedJson items = json.value(key, OrderedJson::array());
    if (!items.is_array()) fail("{}: '{}' of a calibration must be a list", where, key);
    return items;
  };
  for (const OrderedJson& kind : list("kinds"))
    table.kinds.push_back(text(OrderedJson{{"kind", kind}}, "kind", where));
  for (const OrderedJson& quality : list("qualities"))
    table.qualities.push_back(quality_from(quality, where));
  return table;
}

}  // namespace

float Calibration::budget_for(const std::string& measure, float limit) const {
  const CalibratedQuality* best = nullptr;
  std::string known;
  for (const CalibratedQuality& each : qualities) {
    known += fmt::format("{}{}={:g}", known.empty() ? "" : ", ", each.measure, each.limit);
    // A stricter one keeps this one too.
    if (each.measure != measure || each.limit > limit * (1 + 1e-6f)) continue;
    if (!best || each.budget < best->budget) best = &each;
  }
  if (!best)
    fail("no calibrated budget keeps {}={:g}: the table has {}; a calibration for this quality measures it",
         measure, limit, known.empty() ? "none" : known);
  return best->budget;
}

std::vector<float> CalibrationPoint::settings() const {
  std::vector<float> all = thresholds;
  all.insert(all.end(), steering.begin(), steering.end());
  return all;
}

std::vector<float> Calibration::thresholds(float budget) const {
  if (points.empty()) fail("the calibration table is empty");
  constexpr float kSame = 1e-6f;
  const CalibrationPoint &most = points.front(), &least = points.back();
  if (budget < least.budget - kSame)
    throw OutOfReach(fmt::format("a budget of {:g} is below the smallest of the calibration table, {:g}",
                                 budget, least.budget));
  if (budget > most.budget + kSame)
    throw OutOfReach(fmt::format("a budget of {:g} is above the largest of the calibration table, {:g}",
                                 budget, most.budget));
  if (budget >= 1) return std::vector<float>(most.thresholds.size(), -INFINITY);
  size_t at = 0;
  while (points[at].budget > budget + kSame) ++at;
  if (at == 0 || points[at].budget > budget - kSame) return points[at].settings();
  const CalibrationPoint &above = points[at - 1], &below = points[at];
  const float place = (above.budget - budget) / (above.budget - below.budget);
  std::vector<float> mixed = above.settings();
  const std::vector<float> other = below.settings();
  const size_t units = above.thresholds.size();
  for (size_t i = 0; i < mixed.size(); ++i) {
    const bool never =
        !std::isfinite(above.thresholds[i % units]) || !std::isfinite(below.thresholds[i % units]);
    if (!never) mixed[i] += place * (other[i] - mixed[i]);
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
  const OrderedJson json = OrderedJson::parse(text, nullptr, false);
  if (!json.is_object()) fail("{}: the calibration must be a JSON object", where);
  std::vector<Calibration> tables;
  for (const auto& [type, points] : json.items()) {
    tables.push_back(table_from(type, points, units, where));
  }
  return tables;
}

std::string calibrations_to_json(std::span<const Calibration> tables) {
  OrderedJson json = OrderedJson::object();
  for (const Calibration& table : tables) {
    OrderedJson points = OrderedJson::array();
    for (const CalibrationPoint& point : table.points) {
      OrderedJson thresholds = OrderedJson::array();
      for (const float value : point.thresholds)
        thresholds.push_back(std::isfinite(value) ? OrderedJson(value) : OrderedJson(nullptr));
      OrderedJson one{{"budget", point.budget}};
      if (std::isfinite(point.achieved)) one["achieved"] = point.achieved;
      if (std::isfinite(point.checked)) one["checked"] = point.checked;
      if (std::isfinite(point.held)) one["held"] = point.held;
      if (!point.of_kinds.empty()) one["kinds"] = point.of_kinds;
      one["thresholds"] = thresholds;
      if (!point.steering.empty()) one["steering"] = point.steering;
      points.push_back(one);
    }
    OrderedJson one{{"points", points}};
    if (!table.kinds.empty()) one["kinds"] = table.kinds;
    for (const CalibratedQuality& each : table.qualities)
      one["qualities"].push_back({{"measure", each.measure},
                                  {"limit", each.limit},
                                  {"budget", each.budget},
                                  {"bound", each.bound},
                                  {"kind", each.kind}});
    json[table.weight_type] = one;
  }
  return json.dump();
}

}  // namespace fathom
