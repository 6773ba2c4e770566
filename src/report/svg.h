// A drawing in SVG that stands alone or inside a page, with inks for light and dark.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace fathom {

struct Point {
  double x = 0, y = 0;
};

enum class Anchor : uint8_t { kStart, kMiddle, kEnd };

struct TextStyle {
  Anchor anchor = Anchor::kStart;
  double size = 12;
  double turned = 0;  // degrees, clockwise
  bool soft = false, bold = false;
  std::string fill = {};  // "": the page's ink
};

class Svg {
 public:
  Svg(double width, double height, std::string_view title);  // the title is for readers that do not see

  // `hover`: shown under the pointer; "": nothing.
  void rect(Point corner, double width, double height, const std::string& fill, std::string_view hover = {});
  void circle(Point center, double radius, const std::string& fill, double opacity,
              std::string_view hover = {});
  void line(Point from, Point to, const std::string& stroke, double width = 1);  // stroke "": a grid line
  void path(std::span<const Point> points, const std::string& stroke, double width, const std::string& dash);
  void area(std::span<const Point> points, const std::string& fill, double opacity);
  void text(Point at, std::string_view text, const TextStyle& style = {});
  std::string str() const { return body_ + "</svg>\n"; }

 private:
  std::string body_;
};

}  // namespace fathom
