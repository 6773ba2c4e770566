#include "serve/json_number.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/format.h"

namespace fathom {
namespace {

using Node = ByteNfa::Node;

int compare_magnitudes(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  if (const int order = a.whole.compare(b.whole)) return order;
  return a.fraction.compare(b.fraction);  // no zeros at the end: the longer one is larger
}

// What numbers without a sign look like between two bounds of the same kind.
struct Magnitudes {
  Decimal low;                  // 0 where there is no bound
  std::optional<Decimal> high;  // none: as many digits as are allowed
  bool low_open = false, high_open = false;
};

// Digits may follow a text only within what has been read so far: `tight` to a bound.
class RangeWriter {
 public:
  RangeWriter(ByteNfa& nfa, int whole_digits, int fraction_digits)
      : nfa_(nfa), whole_digits_(whole_digits), fraction_digits_(fraction_digits), accept_(nfa.add()) {
    free_ = fraction_from(nullptr, false, nullptr, false);
  }
  Node accept() const { return accept_; }

  // Every number between the bounds, from `start`.
  void write(const Magnitudes& range, Node start) {
    const std::string top(static_cast<size_t>(whole_digits_), '9');
    const std::string& low = range.low.whole;
    const std::string high = range.high ? range.high->whole : top;
    const Decimal* below = range.high ? &*range.high : nullptr;
    if (low == high) {
      nfa_.path(start, low, fraction_from(&range.low, range.low_open, below, range.high_open));
      return;
    }
    nfa_.path(start, low, fraction_from(&range.low, range.low_open, nullptr, false));
    nfa_.path(start, high, fraction_from(nullptr, false, below, range.high_open));
    for (size_t digits = low.size(); digits <= high.size(); ++digits) {
      const bool first = digits == low.size(), last = digits == high.size();
      between(first ? &low : nullptr, last ? &high : nullptr, digits, start);
    }
  }

 private:
  // Whole parts of `digits` digits, strictly between the bounds where there are bounds.
  void between(const std::string* low, const std::string* high, size_t digits, Node start) {
    struct Place {
      Node node;
      bool low, high;
    };
    std::vector<Place> places{{start, low != nullptr, high != nullptr}};
    for (size_t i = 0; i < digits; ++i) {
      const bool last = i + 1 == digits;
      Node next[2][2] = {};
      bool made[2][2] = {};
      std::vector<Place> after;
      for (const Place& place : places) {
        const char from = place.low ? (*low)[i] : (i == 0 && digits > 1 ? '1' : '0');
        const char to = place.high ? (*high)[i] : '9';
        for (char digit = from; digit <= to; ++digit) {
          const bool on_low = place.low && digit == from, on_high = place.high && digit == to;
          if (last) {
            if (!on_low && !on_high) edge(place.node, digit, free_);
            continue;
          }
          if (!made[on_low][on_high]) {
            made[on_low][on_high] = true;
            next[on_low][on_high] = nfa_.add();
            after.push_back({next[on_low][on_high], on_low, on_high});
          }
          edge(place.node, digit, next[on_low][on_high]);
        }
      }
      places = std::move(after);
    }
  }

  // Returns the node at which a fraction may begin whose number is not below `low` and not above `high`, the
  // whole parts being equal to those bounds'.
  Node fraction_from(const Decimal* low, bool low_open, const Decimal* high, bool high_open) {
    const std::string floor = low ? low->fraction : "", ceiling = high ? high->fraction : "";
    struct Place {
      Node node;
      bool low, high;  // equal so far
    };
    // Whether what has been read may be the whole number.
    const auto enough = [&](const Place& place, size_t digits) {
      const bool low_done = digits >= floor.size(), high_done = digits >= ceiling.size();
      if (place.low && (!low_done || low_open)) return false;
      return !(place.high && high_done && high_open);
    };
    const Node start = nfa_.add();
    if (enough({start, low != nullptr, high != nullptr}, 0)) nfa_.skip(start, accept_);
    if (fraction_digits_ == 0) return start;
    const Node point = nfa_.add();
    edge(start, '.', point);
    std::vector<Place> places{{point, low != nullptr, high != nullptr}};
    for (size_t i = 0; i < static_cast<size_t>(fraction_digits_); ++i) {
      Node next[2][2] = {};
      bool made[2][2] = {};
      std::vector<Place> after;
      for (const Place& place : places) {
        const char from = place.low && i < floor.size() ? floor[i] : '0';
        const char to = place.high ? (i < ceiling.size() ? ceiling[i] : '0') : '9';
        for (char digit = from; digit <= to; ++digit) {
          const bool on_low = place.low && digit == from, on_high = place.high && digit == to;
          if (!made[on_low][on_high]) {
            made[on_low][on_high] = true;
            next[on_low][on_high] = nfa_.add();
            after.push_back({next[on_low][on_high], on_low, on_high});
            if (enough(after.back(), i + 1)) nfa_.skip(after.back().node, accept_);
          }
          edge(place.node, digit, next[on_low][on_high]);
        }
      }
      places = std::move(after);
    }
    return start;
  }

  void edge(Node from, char byte, Node to) {
    nfa_.edge(from, static_cast<uint8_t>(byte), static_cast<uint8_t>(byte), to);
  }

  ByteNfa& nfa_;
  int whole_digits_, fraction_digits_;
  Node accept_, free_ = 0;
};

// The numbers of `range` on one side of zero, or nothing. Those of the negative side are without their sign.
std::optional<Magnitudes> side(const NumberRange& range, bool negative) {
  const std::optional<NumberBound>& far = negative ? range.low : range.high;
  const std::optional<NumberBound>& near = negative ? range.high : range.low;
  const auto beyond = [&](const NumberBound& bound) { return bound.value.negative == negative; };
  Magnitudes out;
  if (far) {
    if (!beyond(*far) && !(far->value.zero() && !negative)) return {};
    out.high = far->value;
    out.high_open = far->open;
  }
  if (near && (beyond(*near) || near->value.zero())) {
    out.low = near->value;
    out.low_open = near->open && (!near->value.zero() || !negative);
  }
  if (negative && out.low.zero()) out.low_open = true;  // no "-0"
  if (out.high) {
    const int order = compare_magnitudes(out.low, *out.high);
    if (order > 0 || (order == 0 && (out.low_open || out.high_open))) return {};
  }
  return out;
}

ByteDfa ranged(const NumberRange& range, int whole, int fraction, const std::string& where,
               CompileBudget& budget) {
  ByteNfa nfa(budget);
  const Node start = nfa.add();
  RangeWriter writer(nfa, whole, fraction);
  if (const auto positive = side(range, false)) writer.write(*positive, start);
  if (const auto negative = side(range, true)) {
    const Node minus = nfa.add();
    nfa.edge(start, '-', '-', minus);
    writer.write(*negative, minus);
  }
  ByteDfa dfa(nfa, start, writer.accept());
  if (dfa.size() == 0) fail("{}: no number of at most {} digits is within its bounds", where, whole);
  return dfa;
}

// A bound that no number of ours reaches says nothing, or forbids everything.
void drop_far(std::optional<NumberBound>& bound, bool is_low, const std::string& where) {
  if (!bound || std::ssize(bound->value.whole) <= kMostWholeDigits) return;
  if (bound->value.negative != is_low)
    fail("{}: no number of at most {} digits is beyond {}", where, kMostWholeDigits, bound->value.text());
  bound.reset();
}

size_t most_digits(const NumberRange& range, std::string Decimal::*part) {
  size_t most = 0;
  for (const auto* bound : {&range.low, &range.high}) {
    if (*bound) most = std::max(most, ((*bound)->value.*part).size());
  }
  return most;
}

Decimal plus_one(Decimal value) {  // its magnitude
  size_t i = value.whole.size();
  while (i > 0 && value.whole[i - 1] == '9') value.whole[--i] = '0';
  if (i > 0)
    ++value.whole[i - 1];
  else
    value.whole.insert(value.whole.begin(), '1');
  return value;
}

// The nearest integer inside the bound, which is closed then.
NumberBound to_integer(NumberBound bound, bool is_low) {
  const bool outward = bound.value.negative != is_low;  // larger magnitudes are inside
  const bool moves = bound.open || !bound.value.fraction.empty();
  const bool was_whole = bound.value.fraction.empty();
  bound.value.fraction.clear();
  bound.open = false;
  if (!moves) return bound;
  if (outward) {
    bound.value = plus_one(bound.value);
  } else if (was_whole) {
    bound.open = true;  // the writer leaves the value itself out
  }
  if (bound.value.zero()) bound.value.negative = false;
  return bound;
}

ByteDfa any_number(CompileBudget& budget) {
  ByteNfa nfa(budget);
  const Node start = nfa.add(), minus = nfa.add(), whole = nfa.add(), end = nfa.add(), e = nfa.add();
  nfa.edge(start, '-', '-', minus);
  nfa.skip(start, minus);
  nfa.edge(minus, '0', '0', whole);
  const auto digits = [&](Node from, char first, int most, Node to) {
    for (int i = 0; i < most; ++i) {
      const Node next = nfa.add();
      nfa.edge(from, static_cast<uint8_t>(i == 0 ? first : '0'), '9', next);
      nfa.skip(next, to);
      from = next;
    }
  };
  digits(minus, '1', kMostWholeDigits, whole);
  const Node point = nfa.add(), fraction = nfa.add(), sign = nfa.add();
  nfa.edge(whole, '.', '.', point);
  digits(point, '0', kMostFractionDigits, fraction);
  for (const Node from : {whole, fraction}) {
    nfa.skip(from, end);
    nfa.edge(from, 'e', 'e', e);
    nfa.edge(from, 'E', 'E', e);
  }
  for (const char c : {'+', '-'}) nfa.edge(e, static_cast<uint8_t>(c), static_cast<uint8_t>(c), sign);
  nfa.skip(e, sign);
  digits(sign, '0', kMostExponentDigits, end);
  return ByteDfa(nfa, start, end);
}

}  // namespace

Decimal Decimal::parse(std::string_view text) {
  Decimal out;
  out.negative = text.starts_with('-');
  if (out.negative) text.remove_prefix(1);
  const size_t e = text.find_first_of("eE");
  int exponent = 0;
  if (e != std::string_view::npos) {
    const char* begin = text.data() + e + 1;
    std::from_chars(begin + (*begin == '+'), text.data() + text.size(), exponent);
    text = text.substr(0, e);
  }
  const size_t point = std::min(text.find('.'), text.size());
  std::string digits(text.substr(0, point));
  auto whole = static_cast<int>(digits.size()) + exponent;
  if (point < text.size()) digits += text.substr(point + 1);
  if (whole < 0) digits.insert(0, static_cast<size_t>(-whole), '0'), whole = 0;
  if (whole > std::ssize(digits)) digits.append(static_cast<size_t>(whole) - digits.size(), '0');
  out.whole = digits.substr(0, static_cast<size_t>(whole));
  out.fraction = digits.substr(static_cast<size_t>(whole));
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  if (out.whole.empty()) out.whole = "0";
  out.fraction.erase(out.fraction.find_last_not_of('0') + 1);
  if (out.zero()) out.negative = false;
  return out;
}

std::string Decimal::text() const {
  return (negative ? "-" : "") + whole + (fraction.empty() ? "" : "." + fraction);
}

bool operator<(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative;
  const int order = compare_magnitudes(a, b);
  return a.negative ? order > 0 : order < 0;
}

ByteDfa integer_dfa(const NumberRange& range, const std::string& where, CompileBudget& budget) {
  NumberRange whole = range;
  if (whole.low) whole.low = to_integer(*whole.low, true);
  if (whole.high) whole.high = to_integer(*whole.high, false);
  drop_far(whole.low, true, where);
  drop_far(whole.high, false, where);
  return ranged(whole, kMostWholeDigits, 0, where, budget);
}

ByteDfa number_dfa(const NumberRange& range, const std::string& where, CompileBudget& budget) {
  if (!range.low && !range.high) return any_number(budget);
  NumberRange near = range;
  drop_far(near.low, true, where);
  drop_far(near.high, false, where);
  int whole = kMostWholeDigits, fraction = kMostFractionDigits;
  const auto bound_fraction = static_cast<int>(most_digits(near, &Decimal::fraction));
  const auto bound_whole = static_cast<int>(most_digits(near, &Decimal::whole));
  if ((near.low && near.low->open) || (near.high && near.high->open)) {
    // Numbers of 15 digits that differ are different doubles: none is rounded to an open bound.
    fraction = std::max(3, bound_fraction);
    whole = 15 - fraction;
  }
  if (bound_fraction > fraction || bound_whole > whole)
    fail("{}: its bounds have too many digits ({} before the point, {} behind it)", where, bound_whole,
         bound_fraction);
  return ranged(near, whole, fraction, where, budget);
}

}  // namespace fathom
