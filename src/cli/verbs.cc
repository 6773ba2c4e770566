#include "cli/verbs.h"

namespace fathom {

std::span<const Verb> verbs() {
  static constexpr Verb kVerbs[] = {
      {"generate", "continue a prompt", run_generate},
      {"chat", "talk with a model that has a chat template", run_chat},
      {"score", "log-probability of every token of a text", run_score},
      {"tokenize", "text to token ids and back", run_tokenize},
      {"info", "what a model's files hold", run_info},
      {"convert", "write a model in another format", run_convert},
      {"quantize", "write a GGUF with smaller weights", run_quantize},
      {"bench", "measure speed", run_bench},
      {"train", "train a model from a recipe", run_train},
      {"tune", "train a method's routers or gates on a pretrained model", run_tune},
      {"calibrate", "find a method's thresholds for a grid of budgets", run_calibrate},
      {"eval", "benchmark scores by lm-evaluation-harness's rules", run_eval},
      {"sweep", "quality against savings: methods, budgets and tasks side by side", run_sweep},
      {"inspect", "why a text's tokens ran what they ran, as pictures", run_inspect},
      {"serve", "answer requests over HTTP, as OpenAI's API has them", run_serve},
  };
  return kVerbs;
}

}  // namespace fathom
