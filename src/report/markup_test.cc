#include "report/markup.h"

#include <gtest/gtest.h>

#include "support/xml.h"

namespace fathom {
namespace {

const std::string kHostile =
    "</script></title><img src=x onerror=alert(1)> \" ' & ]]> <!-- \x1b[31m \xff\xfe \xe2\x80\xae evil "
    "\xef\xbf\xbf";

TEST(Markup, NothingInATextIsMarkup) {
  EXPECT_EQ(escape_markup("a<b>&\"c\"'d'"), "a&lt;b&gt;&amp;&quot;c&quot;&#39;d&#39;");
  EXPECT_EQ(escape_markup("naïve ⏎ 😀"), "naïve ⏎ 😀");
  EXPECT_EQ(escape_markup("\x1b\xff"), "\\x1b\\xff");
  EXPECT_EQ(escape_markup("\xe2\x80\xae"), "\\u{202e}") << "what turns text around is shown, not obeyed";
  EXPECT_EQ(escape_markup("\xef\xbf\xbf"), "\\u{ffff}");
  const std::string page = "<p title=\"" + escape_markup(kHostile) + "\">" + escape_markup(kHostile) + "</p>";
  EXPECT_EQ(xml_fault(page), "");
}

TEST(Markup, NoTextEndsAScript) {
  const std::string json = script_json("{\"a\": \"</script><!-- & -->\"}");
  EXPECT_EQ(json.find('<'), std::string::npos);
  EXPECT_EQ(json.find('&'), std::string::npos);
  EXPECT_EQ(json.substr(0, 20), "{\"a\": \"\\u003c/script");
}

TEST(Markup, PagesAndTablesAreWellFormed) {
  Page page(kHostile, kHostile);
  page.add(kHostile, kHostile, to_html({{"name", kHostile}, {{kHostile, "1.5"}, {"", "-3 %"}}}));
  EXPECT_EQ(xml_fault(page.html()), "");
  EXPECT_EQ(page.html().find("<img"), std::string::npos);
  EXPECT_NE(page.html().find("<td class=\"n\">1.5</td>"), std::string::npos) << "numbers stand to the right";
}

TEST(Table, MarkdownLinesUp) {
  EXPECT_EQ(to_markdown({{"token", "n"}, {{"·the", "12"}, {"a|b", "3"}}}),
            "| token |   n |\n| ----- | --: |\n| ·the  |  12 |\n| a\\|b  |   3 |\n");
}

}  // namespace
}  // namespace fathom
