#include "cli/bench_lines.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "cli/interrupt.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

std::string cell(const Json& samples) {
  return fmt::format("{:.1f} ({:.1f}-{:.1f})", samples["median"].get<double>(), samples["min"].get<double>(),
                     samples["max"].get<double>());
}

}  // namespace

int BenchLines::measure(const std::string& name, bool warms, std::function<double()> run) {
  measures_.push_back({name, warms, std::move(run), {}});
  return static_cast<int>(measures_.size()) - 1;
}

void BenchLines::warm_up() {
  for (const Measure& measure : measures_) {
    if (measure.warms && !interrupted()) measure.run();
  }
}

void BenchLines::round() {
  for (Measure& measure : measures_) {
    if (!interrupted()) measure.samples.values.push_back(measure.run());
  }
}

Samples BenchLines::ratios(int ours, int against) const {
  Samples ratios;
  const std::vector<double>&a = at(ours).samples.values, &b = at(against).samples.values;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    ratios.values.push_back(b[i] > 0 ? a[i] / b[i] : 0);
  return ratios;
}

Json BenchLines::json() const {
  Json all = Json::array();
  for (const Line& line : lines_) {
    Json out{{"name", line.name}, {"tokens_per_s", at(line.ours).samples.json()}};
    if (line.against != kNoMeasure) {
      const Measure& other = at(line.against);
      out["against"] = {{"name", other.name}, {"tokens_per_s", other.samples.json()}};
      const Samples ratio = ratios(line.ours, line.against);
      out["ratio"] = ratio.json();
      if (line.bar > 0) {
        out["bar"] = line.bar;
        out["met"] = ratio.median() >= line.bar;
      }
    }
    if (line.base != kNoMeasure) out["speed_up"] = ratios(line.ours, line.base).median();
    if (line.note) {
      const Note note = line.note(at(line.ours).samples.median());
      out["note"] = {{"unit", note.unit}, {"value", note.value}};
    }
    all.push_back(std::move(out));
  }
  return all;
}

std::string lines_text(const Json& lines) {
  std::string text = fmt::format("{:<42} {:<26} {:<38} {:<24} {}\n", "tokens/s, median (min-max)", "fathom",
                                 "against", "ratio", "bar");
  for (const Json& line : lines) {
    std::string against, ratio, bar, more;
    if (line.contains("against")) {
      against = fmt::format("{} {}", line["against"]["name"].get<std::string>(),
                            cell(line["against"]["tokens_per_s"]));
      const Json& r = line["ratio"];
      ratio = fmt::format("{:.3f} ({:.3f}-{:.3f})", r["median"].get<double>(), r["min"].get<double>(),
                          r["max"].get<double>());
    }
    if (line.contains("bar"))
      bar = fmt::format("{:.2f} {}", line["bar"].get<double>(), line["met"].get<bool>() ? "met" : "MISSED");
    if (line.contains("speed_up")) more += fmt::format("; {:.2f} x dense", line["speed_up"].get<double>());
    if (line.contains("note"))
      more += fmt::format("; {:.3g} {}", line["note"]["value"].get<double>(),
                          line["note"]["unit"].get<std::string>());
    text += fmt::format("{:<42} {:<26} {:<38} {:<24} {}{}\n", line["name"].get<std::string>(),
                        cell(line["tokens_per_s"]), against, ratio, bar, more);
  }
  return text;
}

}  // namespace fathom
