#include "report/sweep_report.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>

#include "base/format.h"
#include "report/markup.h"
#include "report/sweep_figures.h"

namespace fathom {
namespace {

// "arc-challenge": for a file's name, each once.
class Slugs {
 public:
  std::string of(const std::string& task) {
    std::string slug;
    for (const unsigned char c : task_name(task)) {
      const bool plain = c < 128 && std::isalnum(c);
      if (plain) slug += static_cast<char>(std::tolower(c));
      if (!plain && !slug.empty() && slug.back() != '-') slug += '-';
    }
    while (!used_.insert(slug).second) slug += "-again";
    return slug;
  }

 private:
  std::set<std::string> used_;
};

// A task, or the mean of all: what its section, its table and its curves are made of.
struct Section {
  std::string heading, slug, note;
  std::vector<SweepPoint> points;
};

std::vector<Section> sections_of(const std::vector<SweepPoint>& points) {
  std::vector<Section> sections;
  Slugs slugs;
  if (std::vector<SweepPoint> means = mean_points(points); !means.empty())
    sections.push_back({"All tasks", slugs.of("mean"),
                        "The mean of the tasks' shares of right answers, each task counting the same.",
                        std::move(means)});
  for (const std::string& task : tasks_of(points)) {
    std::vector<SweepPoint> own = of_task(points, task);
    std::string note = fmt::format("{} items.", own.front().items);
    if (own.front().truncated > 0)
      note += fmt::format(" {} of them were cut on the left to fit the context.", own.front().truncated);
    sections.push_back({printable(task_name(task)), slugs.of(task), std::move(note), std::move(own)});
  }
  return sections;
}

std::string against_dense(double ratio) {
  const double saved = 100 * (1 - ratio);
  if (std::abs(saved) < 0.05) return "as many multiply-adds as dense";
  return fmt::format("{:.1f} % {} multiply-adds than dense", std::abs(saved), saved > 0 ? "fewer" : "more");
}

// One sentence for each method at each budget.
std::string sentences(const std::vector<SweepPoint>& points) {
  std::string out = "<ul>\n";
  for (const SweepPoint& point : points) {
    const Metric* metric = main_metric(point.score);
    if (point.kind == PointKind::kShallow || !metric) continue;
    std::string line = fmt::format("{}: {} {}", point.label, metric->name, value_text(metric));
    if (point.kind == PointKind::kMethod) {
      line = fmt::format("{} at {}: {}, {:.2f} times its decoding speed; {} {}", point.label,
                         point.budget ? "a budget of " + budget_text(point) : "its own rule",
                         against_dense(point.score.savings.net_flops), speed_up(point.score), metric->name,
                         value_text(metric));
      const auto beside = [&](const char* what, const Metric* value, const std::vector<Metric>& difference) {
        line += fmt::format("; {} {} (difference {})", what, value_text(value), difference_text(difference));
      };
      if (point.random) beside("random skipping", main_metric(*point.random), point.to_random);
      if (point.shallow) beside("a shallower model", main_metric(*point.shallow), point.to_shallow);
    }
    if (!point.to_dense.empty()) line += "; difference to dense " + difference_text(point.to_dense);
    out += "<li>" + escape_markup(line) + ".</li>\n";
  }
  return out + "</ul>\n";
}

std::string lead(const SweepInfo& info, const std::vector<SweepPoint>& points) {
  int64_t items = 0;
  const std::vector<std::string> tasks = tasks_of(points);
  for (const std::string& task : tasks) items += of_task(points, task).front().items;
  std::string text =
      fmt::format("What skipping layers costs in quality and saves in work: {} on {} task{}, {} items",
                  info.model, tasks.size(), tasks.size() == 1 ? "" : "s", items);
  if (info.seeds > 0 || !info.shallower.empty())
    text += ". Every number stands beside what the same savings give by other means";
  if (info.seeds > 0) text += fmt::format(": random skipping at the same skip ratio ({} seeds)", info.seeds);
  if (!info.shallower.empty())
    text += fmt::format("{} a shallower dense model at the same net FLOPs ({})",
                        info.seeds > 0 ? ", and" : ":", info.shallower);
  return text +
         ". ± and bars: one standard error. Differences are taken item by item, so that their errors are "
         "paired; "
         "level: less than 1.96 of these.";
}

Table settings_table(const SweepInfo& info) {
  Table table{{"setting", "value"}, {}};
  for (const auto& [name, value] : info.settings) table.rows.push_back({name, value});
  return table;
}

constexpr const char* kColumns =
    "<p><b>budget</b>: the share of the blocks&#39; multiply-adds that was asked for. <b>random</b>, "
    "<b>shallower</b>: the baselines&#39; score at the same savings. <b>against …</b>: the difference "
    "on the same items with its paired standard error; level where it is less than 1.96 of these, else "
    "better "
    "or worse. <b>skip ratio</b>: the share of (token, "
    "unit) "
    "pairs skipped, over all attention and FFN units. <b>block FLOPs</b>: multiply-adds of the blocks; "
    "<b>net "
    "FLOPs</b>: of everything, routers and the output matrix included. <b>net bytes</b>: weights and cache "
    "read to "
    "decode one token after another. All are ratios against the dense model, counted by the kernels. "
    "<b>decode "
    "tok/s</b>, <b>speed-up</b>: one sequence, in turns with the dense model.</p>\n";

}  // namespace

void write_sweep(const SweepInfo& info, const std::vector<SweepPoint>& points, Figures& figures) {
  figures.write("results.json", sweep_json(info, points));
  const std::vector<Section> sections = sections_of(points);
  std::string markdown = "# Quality against savings: " + info.model + "\n\n" + lead(info, points) + "\n";
  std::string latex = "% \\usepackage{booktabs}\n";
  Page page("Quality against savings: " + info.model, lead(info, points));
  page.add("In short", sections.front().note, sentences(sections.front().points));
  for (const Section& section : sections) {
    const Table table = point_table(section.points);
    markdown += "\n## " + section.heading + "\n\n" + section.note + "\n\n" + to_markdown(table);
    latex += "\n" + to_latex(table, section.heading + ": " + section.note, "tab:sweep-" + section.slug);
    const Chart chart = quality_chart(section.points);
    const std::string curve = chart.series.empty() ? "" : figures.add("quality-" + section.slug, chart);
    const Chart by_time = quality_by_time_chart(section.points);
    const std::string timed = by_time.series.empty() ? "" : figures.add("time-" + section.slug, by_time);
    const Chart differences = difference_chart(section.points);
    const std::string beside =
        differences.series.empty() ? "" : figures.add("difference-" + section.slug, differences);
    page.add(section.heading, section.note, curve + timed + beside + to_html(table));
  }
  const Chart speed = speed_chart(sections.front().points);
  if (!speed.series.empty())
    page.add("Speed", "Measured on the tasks' own text, in turns with the dense model, on this machine.",
             figures.add("speed", speed));
  page.add("The columns", "What the tables say.", kColumns);
  page.add("How it was made", "The numbers behind every point are in results.json beside this page.",
           to_html(settings_table(info)));
  figures.write("results.md", markdown);
  figures.write("results.tex", latex);
  figures.write("index.html", page.html());
}

}  // namespace fathom
