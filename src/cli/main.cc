// The program: finds the verb, runs it, and turns what went wrong into one line and an exit code.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>

#include "base/build_info.h"
#include "base/format.h"
#include "base/isa.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/verbs.h"

namespace {

using namespace fathom;

constexpr size_t kLongestError = 1000;  // bytes of a message

void print_usage() {
  std::string text =
      "fathom: an engine for adaptive-depth language models\n\n"
      "usage: fathom <verb> [options]     fathom <verb> -h for a verb's options\n\n";
  for (const Verb& verb : verbs()) text += fmt::format("  {:<10} {}\n", verb.name, verb.summary);
  text += "\n  fathom --version\n\nExample:\n  fathom generate -m builtin -p \"The old man\" -n 100\n";
  print(text);
}

void print_version() {
  const BuildInfo& build = build_info();
  std::string isas;
  for (Isa isa : supported_isas()) isas += (isas.empty() ? "" : ", ") + std::string(name_of(isa));
  print(fmt::format("fathom {} (commit {}, {})\nISA: {} (this machine has {})\nBLAS: {}\nCUDA: {}\n",
                    build.version, build.commit, build.compiler, name_of(choose_isa()), isas, build.blas,
                    build.cuda));
}

int run_verb(const std::string& name, const Arguments& arguments) {
  std::vector<std::string> names;
  for (const Verb& verb : verbs()) {
    if (name == verb.name) return verb.run(arguments);
    names.push_back(verb.name);
  }
  const std::string near = nearest_name(name, names.data(), names.size());
  throw UsageError(fmt::format("unknown verb '{}'{} (fathom -h lists them)", printable(name),
                               near.empty() ? "" : ", did you mean '" + near + "'?"));
}

int dispatch(const Arguments& all) {
  if (all.empty()) throw UsageError("a verb is missing (fathom -h lists them)");
  const std::string& first = all.front();
  if (first == "-h" || first == "--help" || first == "help") return print_usage(), 0;
  if (first == "--version" || first == "-V" || first == "-v" || first == "version") return print_version(), 0;
  return run_verb(first, Arguments(all.begin() + 1, all.end()));
}

int complain(const char* message, int code) {
  std::fflush(stdout);
  std::fputs(("fathom: " + printable(message, kLongestError) + "\n").c_str(), stderr);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    watch_interrupts();
    std::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes is an error of the write, which is said
    const int code = dispatch(Arguments(argv + 1, argv + argc));
    return interrupted() ? kInterruptedExit : code;
  } catch (const UsageError& error) {
    return complain(error.what(), 2);
  } catch (const std::bad_alloc&) {
    return complain("out of memory", 1);
  } catch (const std::filesystem::filesystem_error& error) {
    return complain((error.path1().string() + ": " + error.code().message()).c_str(), 1);
  } catch (const std::exception& error) {
    return interrupted() ? kInterruptedExit : complain(error.what(), 1);
  }
}
