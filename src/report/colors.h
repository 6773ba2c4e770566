// Colours that every eye tells apart, in print and on both grounds.
#pragma once

#include <cstdint>
#include <string>

namespace fathom {

struct Rgb {
  uint8_t red = 0, green = 0, blue = 0;
};

std::string hex(Rgb color);  // "#1f77b4"

// 0: dark blue, 1: yellow, by way of grey; brightness rises all the way.
Rgb ramp(double share);

// Does black read better on it than white?
bool is_light(Rgb color);

// The colour of series `index`. After eight the colours repeat.
Rgb series_color(size_t index);

}  // namespace fathom
