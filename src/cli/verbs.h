// The verbs of the program, one file each.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace fathom {

using Arguments = std::vector<std::string>;  // what came after the verb

// Each returns the exit code of a run that ended as it should (0, or 130 after Ctrl-C) and throws otherwise.
int run_generate(const Arguments& arguments);
int run_chat(const Arguments& arguments);
int run_score(const Arguments& arguments);
int run_tokenize(const Arguments& arguments);
int run_info(const Arguments& arguments);
int run_convert(const Arguments& arguments);
int run_quantize(const Arguments& arguments);
int run_bench(const Arguments& arguments);
int run_train(const Arguments& arguments);
int run_tune(const Arguments& arguments);
int run_calibrate(const Arguments& arguments);
int run_eval(const Arguments& arguments);
int run_sweep(const Arguments& arguments);
int run_inspect(const Arguments& arguments);
int run_serve(const Arguments& arguments);

struct Verb {
  const char* name;
  const char* summary;
  int (*run)(const Arguments& arguments);
};
std::span<const Verb> verbs();

}  // namespace fathom
