#include "cli/drafting.h"

#include <algorithm>
#include <numeric>

#include "base/format.h"
#include "base/log.h"
#include "cli/interrupt.h"
#include "cli/output.h"

namespace fathom {

void add_draft_options(Args& args, DraftChoice& choice) {
  args.text(
      "--speculate", choice.speculate, "K|auto",
      fmt::format("Draft K tokens (at most {}), verify them in one pass: the same text, sooner where the "
                  "drafts are good; auto: as many as pay, or none",
                  kMostDrafts));
  args.choice(
      "--draft", choice.draft, {"auto", "lookup", "method", "harm_order", "exit"},
      "Where drafts come from. lookup: what followed the same tokens earlier in the text; method: the "
      "skipping method at a smaller budget; harm_order: the units that matter most; exit: the first blocks; "
      "auto: lookup or method, whichever pays (default of --speculate auto)");
  args.number("--draft-budget", choice.budget, "Share of the blocks' multiply-adds that a draft runs");
  args.integer(
      "--draft-vocab", choice.vocab,
      "Draft from the N most frequent tokens alone (the lowest ids), 0: from all; verification reads all", 0,
      INT32_MAX);
}

void check_draft_options(const Args& args, const DraftChoice& choice) {
  for (const char* option : {"--draft", "--draft-budget", "--draft-vocab"}) {
    if (args.given(option) && choice.speculate.empty())
      throw UsageError(fmt::format("{} goes with --speculate, which was not given", option));
  }
  for (const char* option : {"--draft-budget", "--draft-vocab"}) {
    if (args.given(option) && choice.draft == "lookup")
      throw UsageError(
          fmt::format("{} goes with drafts by the model, and --draft lookup makes none", option));
  }
  if (choice.draft == "auto" && choice.speculate != "auto")
    throw UsageError(fmt::format("--draft auto goes with --speculate auto, got --speculate {}",
                                 printable(choice.speculate)));
  if (!choice.speculate.empty() && choice.speculate != "auto")
    parse_integer("--speculate", choice.speculate, 1, kMostDrafts);
  if (!(choice.budget > 0 && choice.budget < 1))
    throw UsageError(fmt::format("--draft-budget must be above 0 and below 1, got {:g}", choice.budget));
}

std::optional<DraftOptions> use_drafts(Session& session, const DraftChoice& choice) {
  if (choice.speculate.empty()) return std::nullopt;
  DraftOptions drafts;
  drafts.budget = choice.budget;
  drafts.vocab = choice.vocab;
  if (choice.speculate != "auto")
    drafts.drafts = parse_integer("--speculate", choice.speculate, 1, kMostDrafts);
  const std::span<const std::string_view> names = enum_names(DraftKind{});
  if (!choice.draft.empty() && choice.draft != "auto")
    drafts.kind = static_cast<DraftKind>(std::find(names.begin(), names.end(), choice.draft) - names.begin());
  if (choice.vocab > session.model().config.vocab)
    throw UsageError(fmt::format("--draft-vocab must be at most the model's vocabulary of {}, got {}",
                                 session.model().config.vocab, choice.vocab));
  drafts.kind = session.use_drafts(drafts, &interrupted());
  return drafts;
}

void log_drafts(const DraftChoice& choice, const GenerateResult& result) {
  if (choice.speculate.empty()) return;
  const SpeculationCounts& s = result.stats.speculation;
  if (s.drafted == 0)
    return log_info(fmt::format("no token was drafted: {} these {} tokens",
                                choice.speculate == "auto"
                                    ? "by its count of passes plain decoding was cheaper for"
                                    : "nothing in the text so far had a continuation to look up for",
                                result.ids.size()));
  const std::string source = s.looked_up > 0 ? fmt::format(" ({} of them looked up)", s.looked_up) : "";
  log_info(fmt::format("{} of {} drafted tokens{} stayed; {} drafting and {} verifying passes", s.accepted,
                       s.drafted, source, s.draft_passes, s.verify_passes));
}

bool ShadeChoice::shades() const {
  return on && in_colour(color);
}

void add_shade_options(Args& args, ShadeChoice& choice) {
  args.flag("--show-depth", choice.on, "Shade every token by the layers that ran to give it");
  args.choice("--color", choice.color, {"auto", "always", "never"},
              "The shades of --show-depth; auto: on a terminal");
}

void check_shade_options(const Args& args, const ShadeChoice& choice) {
  if (args.given("--color") && !choice.on)
    throw UsageError("--color goes with --show-depth, which was not given");
}

void log_depth(const std::vector<double>& depth, int64_t layers) {
  if (depth.empty()) return;
  const auto [least, most] = std::minmax_element(depth.begin(), depth.end());
  const double mean = std::accumulate(depth.begin(), depth.end(), 0.0) / static_cast<double>(depth.size());
  log_info(fmt::format("layers run for a new token: {:.1f} of {} on average, {:g} at least, {:g} at most",
                       mean, layers, *least, *most));
}

}  // namespace fathom
