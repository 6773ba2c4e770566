#include "report/colors.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/format.h"

namespace fathom {

std::string hex(Rgb color) {
  return fmt::format("#{:02x}{:02x}{:02x}", color.red, color.green, color.blue);
}

Rgb ramp(double share) {
  static constexpr std::array<Rgb, 5> kStops{
      {{0, 32, 77}, {64, 77, 107}, {124, 123, 120}, {187, 175, 113}, {255, 234, 70}}};
  const double place = std::clamp(share, 0.0, 1.0) * static_cast<double>(kStops.size() - 1);
  const auto below = std::min(static_cast<size_t>(place), kStops.size() - 2);
  const double part = place - static_cast<double>(below);
  const auto mix = [&](uint8_t a, uint8_t b) {
    return static_cast<uint8_t>(std::lround(a + part * (b - a)));
  };
  const Rgb a = kStops[below], b = kStops[below + 1];
  return {mix(a.red, b.red), mix(a.green, b.green), mix(a.blue, b.blue)};
}

bool is_light(Rgb color) {
  return 0.299 * color.red + 0.587 * color.green + 0.114 * color.blue > 140;
}

Rgb series_color(size_t index) {
  // Okabe and Ito's, the yellow and the black left out: one is lost on white, the other on black.
  static constexpr std::array<Rgb, 8> kColors{{{0, 114, 178},
                                               {213, 94, 0},
                                               {0, 158, 115},
                                               {204, 121, 167},
                                               {230, 159, 0},
                                               {86, 180, 233},
                                               {136, 136, 136},
                                               {148, 103, 60}}};
  return kColors[index % kColors.size()];
}

}  // namespace fathom
