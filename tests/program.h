// The built program, run as a person's shell would run it.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/test_paths.h"

namespace fathom {

using Words = std::vector<std::string>;  // of a command line
inline Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A small trained model, quick enough for any test: llama2.c's format, its vocabulary beside it.
inline const std::string kStories = FATHOM_SOURCE_DIR "/tests/data/stories260k/stories260K.bin";

struct ProgramResult {
  int exit_code = -1;  // 128 + signal when one ended it
  std::string out, err;
  std::vector<std::string> reads;  // stdout as it came

  // The one JSON object of --json: anything else on stdout is an error.
  nlohmann::json json() const {
    if (exit_code != 0 && out.empty())
      throw std::runtime_error("exit " + std::to_string(exit_code) + ": " + err);
    if (out.empty() || out.back() != '\n' || out.find('\n') != out.size() - 1)
      throw std::runtime_error("not one line: " + out);
    return nlohmann::json::parse(out);
  }
};

struct ProgramOptions {
  std::string input;                     // stdin
  std::vector<std::string> environment;  // "NAME=value"
  std::function<bool(const std::string& said)>
      interrupt_when;  // SIGINT once this holds; asked again and again
};

inline ProgramResult run_fathom(std::vector<std::string> arguments, const ProgramOptions& options = {}) {
  int in[2], out[2], err[2];
  if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC))
    throw std::runtime_error("pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  posix_spawn_file_actions_adddup2(&actions, err[1], 2);
  std::vector<std::string> environment = options.environment;  // of two of a name, the first counts
  environment.insert(environment.end(), {"FATHOM_MODELS=" FATHOM_SOURCE_DIR "/models", "HOME=/nonexistent",
                                         "PATH=/usr/bin:/bin"});
  for (const char* name : {"ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS", "FATHOM_ISA"}) {
    if (const char* value = std::getenv(name)) environment.push_back(std::string(name) + "=" + value);
  }
  arguments.insert(arguments.begin(), FATHOM_BINARY);
  std::vector<char*> argv, envp;
  for (std::string& word : arguments) argv.push_back(word.data());
  for (std::string& pair : environment) envp.push_back(pair.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  pid_t child = 0;
  const int failed = posix_spawn(&child, argv[0], &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]), close(out[1]), close(err[1]);
  if (failed) throw std::runtime_error("cannot start " + arguments[0]);
  const auto on_pipe = signal(SIGPIPE, SIG_IGN);  // a program that has ended reads nothing
  if (write(in[1], options.input.data(), options.input.size()) < 0 && errno != EPIPE)
    throw std::runtime_error("write");
  signal(SIGPIPE, on_pipe);
  close(in[1]);

  ProgramResult result;
  pollfd waits[2] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}};
  bool interrupted = false;
  for (int open = 2; open > 0;) {
    const bool watches = options.interrupt_when && !interrupted;
    constexpr int kHangs = 600'000,
                  kLook = 10;  // ms; on a busy machine a long command may be silent for minutes
    if (poll(waits, 2, watches ? kLook : kHangs) == 0 && !watches)
      kill(child, SIGKILL);  // the exit code says so
    for (int i = 0; i < 2; ++i) {
      if (waits[i].fd < 0 || waits[i].revents == 0) continue;
      char bytes[65536];
      const ssize_t n = read(waits[i].fd, bytes, sizeof bytes);
      if (n <= 0) {
        waits[i].fd = -1;
        --open;
        continue;
      }
      (i == 0 ? result.out : result.err).append(bytes, static_cast<size_t>(n));
      if (i == 0) result.reads.emplace_back(bytes, static_cast<size_t>(n));
    }
    if (watches && options.interrupt_when(result.out + result.err)) {
      interrupted = true;
      kill(child, SIGINT);
    }
  }
  close(out[0]), close(err[0]);
  int status = 0;
  waitpid(child, &status, 0);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

// A folder for one test, gone at its end.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "fathom-test-XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw std::runtime_error("mkdtemp");
    path_ = pattern;
  }
  ~ScratchFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories(std::filesystem::path(*this / name).parent_path());
    std::ofstream(*this / name, std::ios::binary) << bytes;
    return *this / name;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      all.push_back(entry.path().filename().string());
    return all;
  }

 private:
  std::string path_;
};

}  // namespace fathom
