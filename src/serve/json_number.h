// Numbers within bounds, as they are written in JSON.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "serve/byte_dfa.h"

namespace fathom {

// Written out, without an exponent and without zeros that say nothing.
struct Decimal {
  bool negative = false;
  std::string whole = "0";    // digits
  std::string fraction = "";  // digits

  // `text`: a number of JSON.
  static Decimal parse(std::string_view text);
  bool zero() const { return whole == "0" && fraction.empty(); }
  std::string text() const;
};
bool operator<(const Decimal& a, const Decimal& b);

struct NumberBound {
  Decimal value;
  bool open = false;  // the value itself is outside
};
struct NumberRange {
  std::optional<NumberBound> low, high;
};

constexpr int kMostWholeDigits = 18, kMostFractionDigits = 20, kMostExponentDigits = 2;

// Any integer (at most 18 digits), or those of `range`. A range that holds none is a UserError that begins
// with `where`, and so is one that cannot be told apart in a double.
ByteDfa integer_dfa(const NumberRange& range, const std::string& where, CompileBudget& budget);
// Any number of JSON (18 digits, 20 behind the point, an exponent of two), or those of `range`, which have no
// exponent.
ByteDfa number_dfa(const NumberRange& range, const std::string& where, CompileBudget& budget);

}  // namespace fathom
