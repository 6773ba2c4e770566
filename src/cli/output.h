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

// `text` on a ground whose brightness says how much of the model ran for it: share in [0, 1].
std::string shaded(std::string_view text, double share);

}  // namespace fathom
