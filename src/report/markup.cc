#include "report/markup.h"

#include "base/format.h"
#include "text/unicode.h"

namespace fathom {
namespace {

// Colours are named once, for light and for dark; the figures' own style (report/svg.cc) follows them.
constexpr std::string_view kPageStyle = R"(
:root { color-scheme: light dark; --ground: #fdfdfc; --ink: #1d1d1f; --soft: #5c5c63; --line: #d9d9de; --card: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #141416; --ink: #ececf0; --soft: #a3a3ad; --line: #38383f; --card: #1c1c1f; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px 20px 60px; max-width: 1180px; background: var(--ground); color: var(--ink);
       font: 16px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 26px; margin: 8px 0; line-height: 1.25; }
h2 { font-size: 19px; margin: 36px 0 4px; }
p { margin: 4px 0 12px; }
.note, .lead { color: var(--soft); max-width: 78ch; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; margin: 8px 0; }
th, td { border-bottom: 1px solid var(--line); padding: 4px 12px 4px 0; text-align: left; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td.n { white-space: nowrap; }
td { overflow-wrap: anywhere; }
.beside { display: flex; flex-wrap: wrap; gap: 8px 40px; }
svg { max-width: 100%; height: auto; }
code, .mono { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
)";

// What text may do to a page that shows it, besides being markup: hide, or turn around what stands beside it.
bool is_harmless(char32_t c) {
  const bool turns =
      (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069) || c == 0x200E || c == 0x200F;
  return !turns && (c & 0xFFFE) != 0xFFFE && !(c >= 0xFDD0 && c <= 0xFDEF);
}

}  // namespace

std::string escape_markup(std::string_view text) {
  const std::string shown = printable(text, SIZE_MAX);
  std::string out;
  for (size_t at = 0; at < shown.size();) {
    const Utf8Char c = decode_utf8(shown, at);
    if (c.value == '&') {
      out += "&amp;";
    } else if (c.value == '<') {
      out += "&lt;";
    } else if (c.value == '>') {
      out += "&gt;";
    } else if (c.value == '"') {
      out += "&quot;";
    } else if (c.value == '\'') {
      out += "&#39;";
    } else if (!is_harmless(c.value)) {
      out += fmt::format("\\u{{{:x}}}", static_cast<uint32_t>(c.value));
    } else {
      out += shown.substr(at, c.size);
    }
    at += c.size;
  }
  return out;
}

std::string script_json(std::string_view json) {
  std::string out;
  for (const char c : json) {
    if (c == '<' || c == '>' || c == '&') {
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  return out;
}

std::string to_html(const Table& table) {
  std::string out = "<table>\n<tr>";
  std::vector<const char*> classes;
  for (size_t c = 0; c < table.columns.size(); ++c) {
    classes.push_back(is_numeric(table, c) ? " class=\"n\"" : "");
    out += fmt::format("<th{}>{}</th>", classes[c], escape_markup(table.columns[c]));
  }
  out += "</tr>\n";
  for (const auto& row : table.rows) {
    out += "<tr>";
    for (size_t c = 0; c < row.size(); ++c)
      out += fmt::format("<td{}>{}</td>", classes[c], escape_markup(row[c]));
    out += "</tr>\n";
  }
  return out + "</table>\n";
}

void Page::add(const std::string& heading, const std::string& note, const std::string& body) {
  body_ += fmt::format(
      "<section>\n<h2>{}</h2>\n<p class=\"note\">{}</p>\n<div class=\"scroll\">\n{}</div>\n</section>\n",
      escape_markup(heading), escape_markup(note), body);
}

std::string Page::html() const {
  // Nothing is fetched, whatever the text says.
  constexpr std::string_view kPolicy =
      "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";
  std::string out = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n";
  out += fmt::format("<meta http-equiv=\"Content-Security-Policy\" content=\"{}\"/>\n", kPolicy);
  out += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n";
  out += fmt::format("<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n", escape_markup(title_),
                     kPageStyle);
  out += fmt::format("<h1>{}</h1>\n<p class=\"lead\">{}</p>\n", escape_markup(title_), escape_markup(lead_));
  out += body_;
  return out + "</body>\n</html>\n";
}

}  // namespace fathom
