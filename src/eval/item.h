// A question of a benchmark, in the one form that all of them are brought to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "eval/squad.h"

namespace fathom {

enum class TaskKind : uint8_t {
  kChoice,    // which of several texts is the most likely
  kContinue,  // how likely a text's end is, and whether greedy decoding would write it (or one of several)
  kGenerate,  // an answer that the model writes
  kRolling,   // the perplexity of whole texts
};

// log P(continuation | context) is asked for.
struct ScoredText {
  std::string context, continuation;
};

struct EvalItem {
  std::string id;
  std::string group;                 // a subject or paradigm that is also scored separately; "": none
  std::vector<ScoredText> options;   // kChoice: one per choice; kContinue: one, or each that is right
  std::vector<int64_t> characters;   // kChoice: of each choice as the file has it; acc_norm divides by them
  int64_t gold = 0;                  // kChoice: the right option; -1: none of them is
  std::vector<WordScore> credit;     // kChoice: of each option, where more than one may be right; else empty
  std::string prompt;                // kGenerate
  std::vector<std::string> answers;  // kGenerate: each of them is right
  std::string text;                  // kRolling
  std::string description;           // what stands before the examples and the item
  std::string example;               // the item with its answer, as others see it before their own question
};

}  // namespace fathom
