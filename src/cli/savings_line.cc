#include "cli/savings_line.h"

#include <cmath>

#include "base/format.h"
#include "base/log.h"

namespace fathom {
namespace {

constexpr double kBudgetMissed = 0.03, kDensityMissed = 0.05;
constexpr int64_t kRowsToTell = 256;  // fewer rows say little
constexpr int64_t kShortRows = 64;    // rows of a short sequence, as calibrate cuts some

std::string budget_list(const std::vector<float>& budgets) {
  std::string list;
  for (const float budget : budgets) list += fmt::format("{}{:g}", list.empty() ? "" : ", ", budget);
  return list;
}

void warn_if_missed(double budget, double ran, int64_t rows, int64_t sequences) {
  if (rows < kRowsToTell || std::abs(ran - budget) <= kBudgetMissed) return;
  log_warn(
      fmt::format("a budget of {:g} was asked for and {:.3f} ran: {}", budget, ran,
                  rows / sequences <= kShortRows
                      ? "the texts are short, and in a text's first tokens budgets hold least"
                      : "the text is unlike the one that was calibrated on; calibrate on text like this"));
}

void warn_if_unlike_training(const TrainedRule& rule, double skipped, int64_t rows) {
  if (rows < kRowsToTell || std::abs(skipped - static_cast<double>(rule.trained)) <= kDensityMissed) return;
  log_warn(
      fmt::format("{:.1f} % of the units were skipped, {:.1f} % in training: the text is unlike what was "
                  "trained on",
                  100 * skipped, 100 * rule.trained));
}

}  // namespace

std::optional<double> asked_budget(const Session& session) {
  return session.has_budget() ? std::optional(session.budget()) : std::nullopt;
}

void log_rule(const Session& session) {
  if (!session.method() || session.has_budget()) return;
  const std::vector<float> budgets = session.budgets()->calibrated();
  log_info(fmt::format(
      "{}, without a budget: {}; {}", session.method()->name(),
      session.trained_rule() ? "the share runs that ran in training" : session.method()->own_rule(),
      !budgets.empty()             ? "calibrated budgets: " + budget_list(budgets)
      : session.budgets()->empty() ? "it has no calibrated budgets"
                                   : "a list, which takes any budget"));
}

void log_savings(const Session& session, const WorkBooks& books, std::optional<double> budget,
                 int64_t sequences, bool plain) {
  const Savings savings = books.savings();
  if (!session.method() || savings.skip_ratio <= 0) return;
  const auto rows = static_cast<int64_t>(books.dense.unit_rows) / (2 * session.model().config.layers);
  const std::string asked = !plain   ? "with drafts"
                            : budget ? fmt::format("budget {:g}", *budget)
                                     : "no budget";
  const bool few = budget && rows < kRowsToTell && std::abs(savings.block_flops - *budget) > kBudgetMissed;
  log_info(
      fmt::format("{}: {:.3f} of the blocks' multiply-adds ran, {:.3f} of the bytes were read, {:.1f} % of "
                  "the units were skipped{}",
                  asked, savings.block_flops, savings.net_bytes, 100 * savings.skip_ratio,
                  plain && few ? fmt::format(" (over {} rows: too few for a budget to hold)", rows) : ""));
  if (!plain) return;
  if (budget) return warn_if_missed(*budget, savings.block_flops, rows, std::max<int64_t>(1, sequences));
  if (session.trained_rule()) warn_if_unlike_training(*session.trained_rule(), savings.skip_ratio, rows);
}

}  // namespace fathom
