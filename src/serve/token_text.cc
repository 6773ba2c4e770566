#include "serve/token_text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "text/unicode.h"

namespace fathom {

std::string token_text(const Tokenizer& tokenizer, int32_t id) {
  const std::string bytes = tokenizer.piece(id, true);
  if (is_valid_utf8(bytes)) return bytes;
  std::string text = "bytes:";
  for (const char byte : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return text;
}

double shortest_decimal(float value) {
  std::array<char, 32> text;
  const auto written = std::to_chars(text.data(), text.data() + text.size(), value);
  double read = 0;
  std::from_chars(text.data(), written.ptr, read);
  return read;
}

double written_logprob(float value) {
  constexpr double kImpossible = -9999.0;
  return std::isfinite(value) ? shortest_decimal(value) : kImpossible;
}

int64_t characters_in(std::string_view bytes) {
  int64_t count = 0;
  for (const char byte : bytes) count += (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
  return count;
}

std::string to_line(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace fathom
