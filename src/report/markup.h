// Text of any origin inside HTML and SVG: a model's vocabulary, a user's file. Nothing of it is ever markup.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/table.h"

namespace fathom {

// Safe between tags and in quoted attributes, valid in XML: control characters and bytes that are no UTF-8
// show as \xNN.
std::string escape_markup(std::string_view text);

// JSON inside <script>: no text in it can end the element.
std::string script_json(std::string_view json);

std::string to_html(const Table& table);

// One self-contained page, light or dark as the reader's system is. Sections hold markup.
class Page {
 public:
  Page(std::string title, std::string lead) : title_(std::move(title)), lead_(std::move(lead)) {}
  void add(const std::string& heading, const std::string& note, const std::string& body);
  std::string html() const;

 private:
  std::string title_, lead_, body_;
};

}  // namespace fathom
