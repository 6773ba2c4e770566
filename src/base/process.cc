#include "base/process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/format.h"

extern char** environ;

namespace fathom {
namespace {

struct Pipe {
  int read = -1, write = -1;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) fail("pipe: {}", std::strerror(errno));
    read = ends[0];
    write = ends[1];
  }
  ~Pipe() {
    if (read >= 0) close(read);
    if (write >= 0) close(write);
  }
  void close_write() {
    close(write);
    write = -1;
  }
};

// Both pipes at once: a child that fills one while we wait on the other would never end.
void drain(const Pipe& out, const Pipe& err, ProcessResult& result) {
  pollfd waits[2] = {{out.read, POLLIN, 0}, {err.read, POLLIN, 0}};
  std::string* const into[2] = {&result.out, &result.err};
  int open = 2;
  while (open > 0) {
    if (poll(waits, 2, -1) < 0 && errno != EINTR) break;
    for (int i = 0; i < 2; ++i) {
      if (waits[i].fd < 0 || waits[i].revents == 0) continue;
      char bytes[4096];
      const ssize_t n = read(waits[i].fd, bytes, sizeof bytes);
      if (n > 0) {
        into[i]->append(bytes, static_cast<size_t>(n));
      } else if (n == 0 || errno != EINTR) {
        waits[i].fd = -1;
        --open;
      }
    }
  }
}

}  // namespace

ProcessResult run_process(const std::vector<std::string>& command) {
  Pipe out, err;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out.write, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.write, STDERR_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  std::vector<char*> argv;
  argv.reserve(command.size() + 1);
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_t child = 0;
  const int error = posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) fail("{}: cannot be started: {}", printable(command[0]), std::strerror(error));
  out.close_write();
  err.close_write();
  ProcessResult result;
  drain(out, err, result);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

void fail_process(const std::string& program, const ProcessResult& result) {
  constexpr size_t kWords = 200;
  const std::string& err = result.err;
  fail("{} failed (exit {}): {}", printable(program), result.exit_code,
       printable(err.size() > kWords ? err.substr(err.size() - kWords) : err));
}

}  // namespace fathom
