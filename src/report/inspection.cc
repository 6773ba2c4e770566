#include "report/inspection.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "report/colors.h"
#include "report/heat_page.h"
#include "report/inspection_figures.h"
#include "report/markup.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

// The shortest decimal that reads back as this float; null where there is none.
Json exact(float value) {
  if (!std::isfinite(value)) return nullptr;
  return std::stod(fmt::format("{}", value));
}

// The text itself, each token on a ground that says how deep it ran.
std::string shaded_text(const Inspection& in, const InspectionStats& stats) {
  double least = INFINITY;
  for (size_t r = 0; r < stats.rows(); ++r) least = std::min(least, in.trace.depth(r));
  const auto layers = static_cast<double>(stats.layers());
  const auto ground = [&](double depth) {
    const Rgb color = ramp(layers > least ? (depth - least) / (layers - least) : 1);
    return fmt::format("background:{};color:{}", hex(color), is_light(color) ? "#000" : "#fff");
  };
  std::string out = fmt::format(
      "<p>Layers run: <span style=\"{}\">&nbsp;{:g}&nbsp;</span> to <span "
      "style=\"{}\">&nbsp;{:g}&nbsp;</span></p>\n"
      "<p class=\"mono\" style=\"max-width:110ch;line-height:1.9\">",
      ground(least), least, ground(layers), layers);
  for (size_t r = 0; r < stats.rows(); ++r) {
    const std::string& piece = in.pieces[r];
    const bool line_end = piece.find('\n') != std::string::npos;
    const std::string shown = line_end || in.special[r] ? stats.label(r) : piece;
    const std::string hover = fmt::format("{}: {:g} of {} layers, {}", stats.label(r), in.trace.depth(r),
                                          stats.layers(), name_of(stats.token_class(r)));
    out += fmt::format("<span style=\"{}\" title=\"{}\">{}</span>{}", ground(in.trace.depth(r)),
                       escape_markup(hover), escape_markup(shown), line_end ? "<br/>" : "");
  }
  return out + "</p>\n";
}

std::string token_tables(const InspectionStats& stats) {
  const std::vector<TokenStats> tokens = stats.tokens();
  const auto named = static_cast<ptrdiff_t>(std::min(kTokensNamed, tokens.size()));
  const std::vector<TokenStats> top(tokens.begin(), tokens.begin() + named),
      bottom(tokens.rbegin(), tokens.rbegin() + named);
  return "<div class=\"beside\"><div><h3>Highest</h3>" + to_html(stats.token_table(top)) +
         "</div><div><h3>Lowest</h3>" + to_html(stats.token_table(bottom)) + "</div></div>\n";
}

std::string lead(const Inspection& in, const InspectionStats& stats) {
  const Savings& saved = in.savings;
  std::string out =
      fmt::format("Method {}; {}. {} tokens, {} layers.", in.method, in.rule, stats.rows(), stats.layers());
  if (!std::isnan(saved.skip_ratio))
    out += fmt::format(
        " Skip ratio {:.3f} over all units; block multiply-adds {:.3f}, all multiply-adds {:.3f}, bytes read "
        "{:.3f} of the "
        "dense model's.",
        saved.skip_ratio, saved.block_flops, saved.net_flops, saved.net_bytes);
  return out;
}

std::string scores_note(const InspectionStats& stats) {
  return stats.has_scores() ? "The score is the number that the method decides on: a gate's mean, a router's "
                              "probability, a confidence."
                            : "This method rates nothing, so that what is averaged here is the decision "
                              "itself: 1 for a unit that ran.";
}

}  // namespace

std::string trace_json(const Inspection& in, const InspectionStats& stats) {
  const Trace& trace = in.trace;
  Json out{{"model", in.model}, {"method", in.method}, {"rule", in.rule}, {"layers", stats.layers()}};
  out["skip_ratio"] = in.savings.skip_ratio;
  out["block_flops"] = in.savings.block_flops;
  out["net_flops"] = in.savings.net_flops;
  out["net_bytes"] = in.savings.net_bytes;
  out["units"] = Json::array();
  for (int64_t u = 0; u < trace.units(); ++u) {
    Json unit{{"layer", u / 2}, {"unit", u % 2 ? "ffn" : "attention"}, {"skip_ratio", stats.skip_ratio(u)}};
    unit["threshold"] = in.thresholds.empty() ? Json() : exact(in.thresholds[static_cast<size_t>(u)]);
    out["units"].push_back(unit);
  }
  out["tokens"] = Json::array();
  for (size_t r = 0; r < trace.rows(); ++r) {
    Json token{{"id", trace.row(r).token}, {"text", in.pieces[r]}, {"class", name_of(stats.token_class(r))}};
    token["depth"] = trace.depth(r);
    token["logprob"] = r == 0 ? Json() : exact(in.logprobs[r]);
    token["ran"] = Json::array();
    token["scores"] = Json::array();
    for (int64_t u = 0; u < trace.units(); ++u) {
      token["ran"].push_back(trace.ran(r, u) ? 1 : 0);
      if (stats.has_scores()) token["scores"].push_back(exact(trace.score(r, u)));
    }
    out["tokens"].push_back(token);
  }
  return out.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

void write_inspection(const Inspection& in, Figures& figures) {
  const InspectionStats stats(in);
  figures.write("trace.json", trace_json(in, stats));
  Page page("What " + in.model + " ran", lead(in, stats));
  page.add("The text, by depth",
           "Each token on a ground that says how many layers ran for it. Hover for the number.",
           shaded_text(in, stats));
  if (stats.has_scores()) figures.add("heatmap-scores", token_map(stats, in.trace, Shown::kValues));
  figures.add("heatmap-ran", token_map(stats, in.trace, Shown::kRan));
  page.add("Token × layer",
           scores_note(stats) +
               (stats.rows() > kTokensInPage ? fmt::format(" The first {} tokens.", kTokensInPage) : ""),
           heat_section(in, stats));
  page.add("Skipped, by layer", "The share of this text's tokens that skip each unit.",
           figures.add("skip-ratio", skip_chart(stats)));
  page.add("Tokens at both ends",
           "Averaged over every place of the token in this text and over its units. "
           "Bars: standard errors over the places.",
           figures.add("tokens", token_chart(stats)) + token_tables(stats));
  page.add("By class of token",
           "Classes are guessed from English word lists, endings and the word before: good enough to average "
           "over, wrong for "
           "many single words.",
           figures.add("classes", class_map(stats)) + to_html(stats.class_table()));
  std::string densities;
  for (const auto& [name, unit] :
       {std::pair{"densities-attention", Unit::kAttention}, std::pair{"densities-ffn", Unit::kFfn}}) {
    const Chart chart = density_chart(stats, unit, in.thresholds);
    if (!chart.series.empty()) densities += figures.add(name, chart);
  }
  if (!densities.empty())
    page.add("Scores, layer by layer",
             "Each ridge is one unit's scores over this text, its highest point drawn equally high.",
             "<div class=\"beside\">" + densities + "</div>");
  page.add("Which tokens skip",
           "Every token of the text's vocabulary, by class; named are those at the ends.",
           figures.add("bubbles", bubble_chart(stats)));
  figures.write("index.html", page.html());
}

}  // namespace fathom
