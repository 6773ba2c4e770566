// A loaded model and its engine, as the API uses them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "infer/budgets.h"
#include "infer/fathom.h"
#include "serve/api_options.h"
#include "text/chat_template.h"

namespace fathom {

struct ServedModel {
  const Model* model = nullptr;  // with a tokenizer; it and the others outlive every request
  Engine* engine = nullptr;
  const Budgets* budgets = nullptr;  // null until complete(): a dense model's
  std::optional<float> budget = {};  // of requests that name none; none: the method's own rule
  int64_t context = 0;               // tokens of a prompt and its answer
  std::optional<ChatTemplate> chat = {};
  std::string no_chat = {};  // why there is none

  MaskFactory masks = {};  // for response_format

  // Filled in by complete().
  std::vector<float> grid = {};  // budgets that "auto" chooses from, falling
  int64_t longest_token = 1;     // bytes
  int64_t created = 0;           // Unix time

  const Tokenizer& tokenizer() const { return *model->tokenizer; }
  int64_t layers() const { return model->config.layers; }
};

// Fills in what follows from the model and the budgets. `chat_template`: a known format's name, or "" for the
// model's own.
void complete(ServedModel& served, const std::string& chat_template = "");

}  // namespace fathom
