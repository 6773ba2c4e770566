// The options of fathom generate: of one prompt, and of an offline batch.
#pragma once

#include "cli/drafting.h"

namespace fathom {

struct BatchChoice {
  std::string input, output;  // "": none
  int64_t unconditional = 0, parallel = 16;
  bool ids = false, force = false;
  bool on() const { return !input.empty() || unconditional > 0; }
};

struct GenerateChoice {
  ModelOptions model;
  SamplingOptions sampling;
  DraftChoice drafts;
  ShadeChoice shades;
  BatchChoice batch;
  std::string prompt, file, chat_template, system;
  std::vector<std::string> stops;
  std::string json_schema;  // a file
  int64_t tokens = 256;
  bool ignore_eos = false, json_object = false;
};

// What --json-object and --json-schema allow, or nothing.
std::function<std::unique_ptr<TokenMask>()> json_mask(const Session& session, const GenerateChoice& choice);

void add_batch_options(Args& args, BatchChoice& choice);
void check_batch_options(const Args& args, const BatchChoice& choice);  // UsageErrors

// generate with --batch or --unconditional. Returns the exit code.
int run_generate_batch(const Args& args, const GenerateChoice& choice);

}  // namespace fathom
