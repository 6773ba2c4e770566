// The options of drafting and of shading, which generate and chat share.
#pragma once

#include "cli/session.h"
#include "infer/generate.h"

namespace fathom {

struct DraftChoice {
  std::string speculate, draft;  // "": none, the method's default
  double budget = 0.6;
  int64_t vocab = 0;  // 0: all
};

void add_draft_options(Args& args, DraftChoice& choice);
void check_draft_options(const Args& args, const DraftChoice& choice);  // UsageErrors

// Makes the session ready to draft, which may measure the model. Returns none without --speculate. Ctrl-C
// ends it with PrepareCancelled.
std::optional<DraftOptions> use_drafts(Session& session, const DraftChoice& choice);

// How many drafts stayed, or why there were none.
void log_drafts(const DraftChoice& choice, const GenerateResult& result);

struct ShadeChoice {
  bool on = false;
  std::string color = "auto";
  bool shades() const;  // does text get colours?
};
void add_shade_options(Args& args, ShadeChoice& choice);
void check_shade_options(const Args& args, const ShadeChoice& choice);  // UsageErrors

// The mean, the least and the most layers of these tokens.
void log_depth(const std::vector<double>& depth, int64_t layers);

}  // namespace fathom
