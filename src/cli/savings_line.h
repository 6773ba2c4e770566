// What was asked and what ran, in one line on stderr.
#pragma once

#include "cli/session.h"

namespace fathom {

// Where no budget was asked for: the rule that runs, and the budgets there are.
void log_rule(const Session& session);

// What ran, wherever something skipped; and, where enough rows ran to tell, a warning when that is not what
// was asked for, or not what training did. `books`: of these sequences. `plain`: nothing was drafted.
void log_savings(const Session& session, const WorkBooks& books, std::optional<double> budget,
                 int64_t sequences = 1, bool plain = true);

// The budget that the session was opened with; none: the method's own rule.
std::optional<double> asked_budget(const Session& session);

}  // namespace fathom
