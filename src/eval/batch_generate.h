// Greedy answers to many prompts, side by side.
#pragma once

#include "eval/batch_score.h"
#include "eval/task.h"

namespace fathom {

// `prompts`: one request of each item, none of whose tokens is scored. Ends at a stop string (of which
// nothing is returned), at one of end_token_ids() (infer/writer.h), or after rules.max_tokens. Returns
// the text of each prompt's answer; when cancelled, some are unfinished.
std::vector<std::string> generate_items(Feeder& feeder, std::span<const ItemRequests> prompts,
                                        std::span<const size_t> order, const GenerationRules& rules,
                                        const BatchOptions& options);

}  // namespace fathom
