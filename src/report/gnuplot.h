// PNG by gnuplot, fed with tables. Text only ever reaches it as data, never as commands.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fathom {

struct Plot {
  std::string commands;             // "plot TABLE0 using 1:2 with lines": TABLEn is the n-th table's file
  std::vector<std::string> tables;  // tab-separated lines
  double width = 760, height = 420;
};

// A string constant of gnuplot's language.
std::string plot_string(std::string_view text);
// A cell of a table.
std::string plot_cell(std::string_view text);

// "" where it can be run, else why not.
std::string why_no_gnuplot();

// The file appears whole or not at all. What gnuplot refuses is a UserError with its words.
void write_png(const std::string& path, const Plot& plot);

}  // namespace fathom
