// What goes to stdout.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "infer/feeder.h"

namespace fathom {

// At once: a stream's reader sees each piece as it comes. A closed or full stdout is a UserError.
void print(std::string_view text);

// The one object of --json, on one line; bytes that are no UTF-8 become U+FFFD.
void print_json(const nlohmann::ordered_json& object);

// The shortest decimal that reads back as this float: 0.8, not 0.800000011920929.
double short_decimal(float value);

void add_savings(nlohmann::ordered_json& object, const Savings& savings);

// Bytes of keys and values that the cache really holds, and that a dense model would hold for the same rows.
void add_cache_bytes(nlohmann::ordered_json& object, const KvCache& cache);

// Text of a model for a terminal: control characters other than line end and tab as \xNN, so that it cannot
// command the terminal. As it is when stdout is no terminal.
std::string for_terminal(std::string_view text);

// "always", "never", or "auto": when stdout is a terminal and NO_COLOR is not set.
bool in_colour(const std::string& when);

// `text` on a ground from dark blue (half of the layers or fewer) to light yellow (all of them): nine shades
// that differ in brightness first, so that they are told apart in grey and by every eye.
std::string shaded(std::string_view text, double depth, int64_t layers);

// One line that says which depth each shade is.
std::string depth_legend(int64_t layers);

}  // namespace fathom
