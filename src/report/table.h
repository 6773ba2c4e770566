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

// A table environment for \usepackage{booktabs}. Whatever means something to LaTeX stands for itself.
std::string to_latex(const Table& table, const std::string& caption, const std::string& label);

// "12", "-0.5", "3.1 %", "0.43 ± 0.03"
bool looks_numeric(const std::string& cell);
bool is_numeric(const Table& table, size_t column);  // every cell is, or is "–"

}  // namespace fathom
