#include "report/svg.h"

#include <array>

#include "base/format.h"
#include "report/markup.h"

namespace fathom {
namespace {

constexpr std::string_view kSvgStyle =
    ".ground{fill:#fff}.ink{fill:#1d1d1f}.soft{fill:#5c5c63}.rule{stroke:#dcdce0}"
    "@media(prefers-color-scheme:dark){.ground{fill:#1c1c1f}.ink{fill:#ececf0}.soft{fill:#a3a3ad}.rule{"
    "stroke:#38383f}}";

// Shapes with a hover text hold it as their title.
std::string closed(std::string_view tag, std::string_view hover) {
  if (hover.empty()) return "/>\n";
  return fmt::format("><title>{}</title></{}>\n", escape_markup(hover), tag);
}

std::string points_of(std::span<const Point> points) {
  std::string out;
  for (const auto& [x, y] : points) out += fmt::format("{}{:.5g},{:.5g}", out.empty() ? "" : " ", x, y);
  return out;
}

}  // namespace

Svg::Svg(double width, double height, std::string_view title) {
  body_ = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:g} {1:g}\" width=\"{0:g}\" "
      "height=\"{1:g}\" role=\"img\" "
      "font-family=\"DejaVu Sans, Verdana, sans-serif\">\n<title>{2}</title>\n<style>{3}</style>\n"
      "<rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n",
      width, height, escape_markup(title), kSvgStyle);
}

void Svg::rect(Point corner, double width, double height, const std::string& fill, std::string_view hover) {
  body_ += fmt::format("<rect x=\"{:.5g}\" y=\"{:.5g}\" width=\"{:.5g}\" height=\"{:.5g}\" fill=\"{}\"",
                       corner.x, corner.y, width, height, fill) +
           closed("rect", hover);
}

void Svg::circle(Point center, double radius, const std::string& fill, double opacity,
                 std::string_view hover) {
  body_ += fmt::format("<circle cx=\"{:.5g}\" cy=\"{:.5g}\" r=\"{:.4g}\" fill=\"{}\" fill-opacity=\"{:g}\"",
                       center.x, center.y, radius, fill, opacity) +
           closed("circle", hover);
}

void Svg::line(Point from, Point to, const std::string& stroke, double width) {
  const std::string ink = stroke.empty() ? "class=\"rule\"" : fmt::format("stroke=\"{}\"", stroke);
  body_ += fmt::format(
      "<line x1=\"{:.5g}\" y1=\"{:.5g}\" x2=\"{:.5g}\" y2=\"{:.5g}\" {} stroke-width=\"{:g}\"/>\n", from.x,
      from.y, to.x, to.y, ink, width);
}

void Svg::path(std::span<const Point> points, const std::string& stroke, double width,
               const std::string& dash) {
  const std::string dashes = dash.empty() ? "" : fmt::format(" stroke-dasharray=\"{}\"", dash);
  body_ += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{:g}\"{}/>\n",
                       points_of(points), stroke, width, dashes);
}

void Svg::area(std::span<const Point> points, const std::string& fill, double opacity) {
  body_ += fmt::format("<polygon points=\"{}\" fill=\"{}\" fill-opacity=\"{:g}\"/>\n", points_of(points),
                       fill, opacity);
}

void Svg::text(Point at, std::string_view text, const TextStyle& style) {
  static constexpr std::array<const char*, 3> kAnchors{"start", "middle", "end"};
  std::string more = style.fill.empty() ? (style.soft ? " class=\"soft\"" : " class=\"ink\"")
                                        : fmt::format(" fill=\"{}\"", style.fill);
  if (style.bold) more += " font-weight=\"600\"";
  if (style.turned != 0)
    more += fmt::format(" transform=\"rotate({:g} {:.5g} {:.5g})\"", style.turned, at.x, at.y);
  body_ +=
      fmt::format("<text x=\"{:.5g}\" y=\"{:.5g}\" font-size=\"{:g}\" text-anchor=\"{}\"{}>{}</text>\n", at.x,
                  at.y, style.size, kAnchors[static_cast<size_t>(style.anchor)], more, escape_markup(text));
}

}  // namespace fathom
