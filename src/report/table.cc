#include "report/table.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>

#include "text/unicode.h"

namespace fathom {
namespace {

// Characters, not bytes: close enough to columns of a terminal for Latin text.
size_t width_of(const std::string& text) {
  size_t width = 0;
  for (size_t at = 0; at < text.size(); at += decode_utf8(text, at).size) ++width;
  return width;
}

// A bar inside a cell would end it.
std::string cell_text(const std::string& cell) {
  std::string out;
  for (const char c : cell) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

std::string latex_text(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    const std::string piece = text.substr(at, c.size);
    at += c.size;
    if (piece == "±") {
      out += "$\\pm$";
    } else if (piece == "×") {
      out += "$\\times$";
    } else if (piece == "–") {
      out += "--";
    } else if (piece == "\\") {
      out += "\\textbackslash{}";
    } else if (piece == "~" || piece == "^") {
      out += "\\" + piece + "{}";
    } else if (piece.find_first_of("&%$#_{}") != std::string::npos) {
      out += "\\" + piece;
    } else {
      out += piece;
    }
  }
  return out;
}

std::string padded(const std::string& text, size_t width, bool right) {
  const std::string space(width - std::min(width, width_of(text)), ' ');
  return right ? space + text : text + space;
}

}  // namespace

bool looks_numeric(const std::string& cell) {
  const size_t at = !cell.empty() && (cell[0] == '-' || cell[0] == '+') ? 1 : 0;
  if (at >= cell.size() || !std::isdigit(static_cast<unsigned char>(cell[at]))) return false;
  return std::all_of(cell.begin() + static_cast<std::ptrdiff_t>(at), cell.end(),
                     [](unsigned char c) {  // the two bytes of ±, too
                       return std::isdigit(c) || c == '.' || c == ' ' || c == '%' || c == 0xC2 || c == 0xB1;
                     });
}

bool is_numeric(const Table& table, size_t column) {
  return !table.rows.empty() && std::all_of(table.rows.begin(), table.rows.end(), [&](const auto& row) {
    return looks_numeric(row[column]) || row[column] == "–";
  });
}

std::string to_markdown(const Table& table) {
  const size_t columns = table.columns.size();
  std::vector<size_t> widths(columns, 3);
  std::vector<uint8_t> right(columns);
  for (size_t c = 0; c < columns; ++c) {
    right[c] = is_numeric(table, c);
    widths[c] = std::max(widths[c], width_of(cell_text(table.columns[c])));
    for (const auto& row : table.rows) widths[c] = std::max(widths[c], width_of(cell_text(row[c])));
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string out = "|";
    for (size_t c = 0; c < columns; ++c) out += " " + padded(cell_text(cells[c]), widths[c], right[c]) + " |";
    return out + "\n";
  };
  std::string out = line(table.columns) + "|";
  for (size_t c = 0; c < columns; ++c)
    out += " " + std::string(widths[c] - 1, '-') + (right[c] ? ": |" : "- |");
  out += "\n";
  for (const auto& row : table.rows) out += line(row);
  return out;
}

std::string to_latex(const Table& table, const std::string& caption, const std::string& label) {
  const auto line = [](const std::vector<std::string>& cells) {
    std::string out;
    for (size_t c = 0; c < cells.size(); ++c) out += (c ? " & " : "") + latex_text(cells[c]);
    return out + " \\\\\n";
  };
  std::string out = "\\begin{table}\n\\centering\n\\begin{tabular}{";
  for (size_t c = 0; c < table.columns.size(); ++c) out += is_numeric(table, c) ? 'r' : 'l';
  out += "}\n\\toprule\n" + line(table.columns) + "\\midrule\n";
  for (const auto& row : table.rows) out += line(row);
  return out + "\\bottomrule\n\\end{tabular}\n\\caption{" + latex_text(caption) + "}\n\\label{" + label +
         "}\n\\end{table}\n";
}

}  // namespace fathom
