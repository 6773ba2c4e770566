// A small table of text, for pages and terminals.
#pragma once

#include <string>
#include <vector>

namespace fathom {

struct Table {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  // as many cells as columns; a cell that is a number goes right
};

// Columns padded to one width, so that it reads as plain text, too.
std::string to_markdown(const Table& table);

// "12", "-0.5", "3.1 %"
bool looks_numeric(const std::string& cell);

}  // namespace fathom
