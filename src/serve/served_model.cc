#include "serve/served_model.h"

#include <algorithm>
#include <chrono>

#include "infer/chat_encoding.h"

namespace fathom {
namespace {

// What was calibrated for, and 1 where the method can run everything.
std::vector<float> find_grid(const Budgets& budgets) {
  std::vector<float> grid = budgets.calibrated();
  if (std::find(grid.begin(), grid.end(), 1.0f) == grid.end()) {
    try {
      budgets.thresholds(1);
      grid.insert(grid.begin(), 1.0f);
    } catch (const UserError&) {  // trained to less
    }
  }
  return grid;
}

}  // namespace

void complete(ServedModel& served, const std::string& chat_template) {
  try {
    served.chat = chat_template_of(*served.model, chat_template);
  } catch (const NoChatTemplate& error) {
    served.no_chat = error.why;
  }
  static const Budgets dense;
  if (!served.budgets) served.budgets = &dense;
  served.grid = find_grid(*served.budgets);
  const Tokenizer& tokenizer = served.tokenizer();
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    served.longest_token = std::max(served.longest_token, std::ssize(tokenizer.piece(id, true)));
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  served.created = std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

}  // namespace fathom
