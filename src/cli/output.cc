#include "cli/output.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/format.h"

namespace fathom {
namespace {

// xterm's 256 colours, brighter step by step.
constexpr std::array<int, 9> kShades{17, 18, 24, 60, 66, 101, 143, 185, 227};
constexpr size_t kFirstLight = 5;  // from here on black ink

}  // namespace

void print(std::string_view text) {
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written && errno != EINTR) fail("writing to stdout failed: {}", std::strerror(errno));
}

void print_json(const nlohmann::ordered_json& object) {
  print(object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

double short_decimal(float value) {
  return std::stod(fmt::format("{}", value));
}

void add_savings(nlohmann::ordered_json& object, const Savings& savings) {
  object["skip_ratio"] = savings.skip_ratio;
  object["block_flops"] = savings.block_flops;
  object["net_flops"] = savings.net_flops;
  object["net_bytes"] = savings.net_bytes;
}

void add_cache_bytes(nlohmann::ordered_json& object, const KvCache& cache) {
  object["cache_bytes"] = cache.bytes_held();
  object["cache_bytes_dense"] = cache.bytes_dense();
}

std::string for_terminal(std::string_view text) {
  static const bool terminal = isatty(STDOUT_FILENO) == 1;
  if (!terminal) return std::string(text);
  std::string out;
  while (!text.empty()) {
    const size_t plain = std::min(text.find_first_of("\n\t"), text.size());
    out += printable(text.substr(0, plain), SIZE_MAX);
    if (plain < text.size()) out += text[plain];
    text.remove_prefix(std::min(plain + 1, text.size()));
  }
  return out;
}

bool in_colour(const std::string& when) {
  if (when != "auto") return when == "always";
  const char* const no_color = std::getenv("NO_COLOR");
  return isatty(STDOUT_FILENO) == 1 && !(no_color && *no_color);
}

std::string shaded(std::string_view text, double depth, int64_t layers) {
  const double share = depth / static_cast<double>(layers);
  const auto shade = static_cast<size_t>(
      std::lround(static_cast<double>(kShades.size() - 1) * std::clamp(2 * share - 1, 0.0, 1.0)));
  std::string out;
  while (!text.empty()) {
    // A line end inside the colour would paint the rest of the terminal's line.
    const size_t line = std::min(text.find('\n'), text.size());
    if (line > 0)
      out += fmt::format("\x1b[48;5;{};38;5;{}m{}\x1b[0m", kShades[shade], shade < kFirstLight ? 231 : 16,
                         text.substr(0, line));
    if (line < text.size()) out += '\n';
    text.remove_prefix(std::min(line + 1, text.size()));
  }
  return out;
}

std::string depth_legend(int64_t layers) {
  std::string line = "layers run:";
  const double all = static_cast<double>(layers), step = all / 2 / static_cast<double>(kShades.size() - 1);
  for (size_t i = 0; i < kShades.size(); ++i) {
    const double depth = all / 2 + step * static_cast<double>(i);
    line += " " + shaded(fmt::format(" {}{:.3g} ", i == 0 ? "≤ " : "", depth), depth, layers);
  }
  return line + "\n";
}

}  // namespace fathom
