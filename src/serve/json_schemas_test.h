// A hundred schemas and more: some written by hand, the others drawn; and values of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fathom {

std::vector<std::string> hundred_schemas();

// A value of the schema, in the layout of docs/structured_output.md: compact where the seed is even, else
// with spaces. None where it does not know how.
std::optional<std::string> draw_value(const std::string& schema, uint64_t seed);

}  // namespace fathom
