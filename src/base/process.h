// Another program, run to its end.
#pragma once

#include <string>
#include <vector>

namespace fathom {

struct ProcessResult {
  int exit_code = 0;  // 128 + signal when one ended it
  std::string out, err;
};

// command[0] is looked up in PATH unless it has a slash. One that cannot be started is a UserError.
ProcessResult run_process(const std::vector<std::string>& command);

// A UserError with the program's exit code and its last words.
[[noreturn]] void fail_process(const std::string& program, const ProcessResult& result);

}  // namespace fathom
