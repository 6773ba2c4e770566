#include "report/inspection.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "report/gnuplot.h"
#include "report/inspected_test.h"
#include "report/inspection_figures.h"
#include "support/xml.h"
#include "train/temporary_folder_test.h"

namespace fathom {
namespace {

TEST(Inspection, NumbersAreTheTraces) {
  Inspected it(R"({"name": "gate_skip"})");
  const InspectionStats stats(it.in);
  EXPECT_TRUE(stats.has_scores());
  double ratio = 0, skipped = 0;
  for (int64_t u = 0; u < 8; ++u) ratio += stats.skip_ratio(u) / 8;
  for (size_t r = 0; r < stats.rows(); ++r) skipped += stats.skipped(r);
  EXPECT_NEAR(ratio, it.in.savings.skip_ratio, 1e-12) << "what the kernels counted";
  EXPECT_GT(ratio, 0.2);
  EXPECT_NEAR(skipped / (4 * 24), ratio, 1e-12);
  // Token 7 stands at 7 and 17.
  double sum = 0;
  for (const size_t r : {7, 17}) {
    for (int64_t u = 0; u < 8; ++u) sum += static_cast<double>(it.trace.score(r, u));
  }
  const std::vector<TokenStats> tokens = stats.tokens();
  ASSERT_EQ(tokens.size(), 10u);
  const auto house =
      std::find_if(tokens.begin(), tokens.end(), [](const TokenStats& t) { return t.label == "·house"; });
  ASSERT_NE(house, tokens.end());
  EXPECT_EQ(house->count, 2);
  EXPECT_NEAR(house->value, sum / 16, 1e-6);
  EXPECT_TRUE(std::is_sorted(tokens.begin(), tokens.end(),
                             [](const auto& a, const auto& b) { return a.value > b.value; }));
  EXPECT_NEAR(stats.class_value(TokenClass::kBos, 3),
              (stats.value(0, 3) + stats.value(10, 3) + stats.value(20, 3)) / 3, 1e-6);
}

TEST(Inspection, AMethodWithoutScoresShowsItsDecisions) {
  Inspected it(R"({"name": "short_gpt"})");
  const InspectionStats stats(it.in);
  EXPECT_FALSE(stats.has_scores());
  for (size_t r = 0; r < stats.rows(); ++r) EXPECT_EQ(stats.value(r, 5), it.trace.ran(r, 5) ? 1.0f : 0.0f);
}

TEST(Inspection, DensitiesCarryTheThresholds) {
  Inspected it(R"({"name": "priced"})");
  const InspectionStats stats(it.in);
  const Chart with = density_chart(stats, Unit::kFfn, it.in.thresholds),
              without = density_chart(stats, Unit::kFfn, {});
  ASSERT_EQ(without.series.size(), 4u) << "a ridge for each layer";
  ASSERT_EQ(with.series.size(), 5u);
  EXPECT_EQ(static_cast<float>(with.series[4].x[0]), it.in.thresholds[7])
      << "the uppermost layer's comes first";
}

void expect_every_file(const char* method, const std::string& path) {
  Inspected it(method);
  Figures figures(path);
  write_inspection(it.in, figures);
  const bool scores = InspectionStats(it.in).has_scores(), png = why_no_gnuplot().empty();
  std::vector<std::string> expected{"heatmap-ran", "skip-ratio", "tokens", "classes", "bubbles"};
  if (scores) expected.insert(expected.end(), {"heatmap-scores", "densities-attention"});
  if (!std::isnan(it.trace.score(0, 1))) expected.push_back("densities-ffn");
  EXPECT_EQ(figures.files().size(), expected.size() * (png ? 2 : 1) + 2);
  for (const std::string& name : expected) {
    EXPECT_EQ(xml_fault(read_text_file(path + "/" + name + ".svg")), "") << name;
    if (!png) continue;
    EXPECT_EQ(read_text_file(path + "/" + name + ".png").substr(1, 3), "PNG") << name;
  }
  const std::string html = read_text_file(path + "/index.html");
  EXPECT_EQ(xml_fault(html), "");
  EXPECT_EQ(html.find("<b>"), std::string::npos) << "a token became markup";
  const size_t data = html.find("id=\"heat-data\">") + 15;
  const auto heat = nlohmann::json::parse(html.substr(data, html.find("</script>", data) - data));
  EXPECT_EQ(heat.at("labels").size(), 24u);
  EXPECT_EQ(heat.at("labels")[2], "·</script><b>");

  const auto trace = nlohmann::json::parse(read_text_file(path + "/trace.json"));
  ASSERT_EQ(trace.at("tokens").size(), 24u);
  for (size_t r = 0; r < 24; ++r) {
    const auto& token = trace.at("tokens")[r];
    EXPECT_EQ(token.at("depth"), it.trace.depth(r));
    for (int64_t u = 0; u < 8; ++u) {
      EXPECT_EQ(token.at("ran")[static_cast<size_t>(u)] == 1, it.trace.ran(r, u));
      if (!scores || std::isnan(it.trace.score(r, u))) continue;
      EXPECT_EQ(token.at("scores")[static_cast<size_t>(u)].get<float>(), it.trace.score(r, u));
    }
  }
}
TEST(Inspection, EveryFileIsThereAndParses) {
  const TemporaryFolder folder;
  expect_every_file(R"({"name": "mind_skip", "pool": "prefix:5"})", folder.at("some/where"));
}

// One warning, and all the rest.
TEST(Inspection, WithoutGnuplotTheRestIsMade) {
  const TemporaryFolder folder;
  const std::string path = std::getenv("PATH");
  setenv("PATH", folder.path().c_str(), 1);
  for (const char* method : {R"({"name": "gate_skip"})", R"({"name": "short_gpt"})"}) {
    SCOPED_TRACE(method);
    testing::internal::CaptureStderr();
    expect_every_file(method, folder.at(method[10] == 'g' ? "gates" : "static"));
    EXPECT_NE(testing::internal::GetCapturedStderr().find("no PNG figures"), std::string::npos);
  }
  setenv("PATH", path.c_str(), 1);
}

TEST(Figures, AFolderThatCannotBeIsOneLine) {
  EXPECT_THROW(Figures("/dev/null/report"), UserError);
  EXPECT_THROW(Figures("/dev/null"), UserError);
}

}  // namespace
}  // namespace fathom
