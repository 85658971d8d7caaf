#include "cli/testing/program.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/check.h"

namespace muster::cli {

std::string ProgramPath(const std::string& target) {
  return absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"), "/", target);
}

Program::Program(const std::vector<std::string>& command, const Environment& environment, const std::string& input,
                 bool terminal, int columns) {
  std::vector<std::string> arguments = command, variables;
  const char* path = std::getenv("PATH");
  variables.push_back(absl::StrCat("PATH=", path == nullptr ? "/usr/bin:/bin" : path));
  for (const auto& [name, value] : environment) variables.push_back(absl::StrCat(name, "=", value));
  std::vector<char*> argv, envp;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  for (std::string& variable : variables) envp.push_back(variable.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  int in[2], out[2], err[2];
  MUSTER_CHECK(pipe2(in, O_CLOEXEC) == 0, arguments[0], ": pipe: ", std::strerror(errno));
  if (terminal) {
    winsize size{.ws_row = 40, .ws_col = static_cast<unsigned short>(columns), .ws_xpixel = 0, .ws_ypixel = 0};
    const int opened = openpty(&out[0], &out[1], nullptr, nullptr, &size);
    MUSTER_CHECK(opened == 0, arguments[0], ": openpty: ", std::strerror(errno));
    fcntl(out[0], F_SETFD, FD_CLOEXEC);
    fcntl(out[1], F_SETFD, FD_CLOEXEC);
    err[0] = -1;
    err[1] = out[1];
  } else {
    MUSTER_CHECK(pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0, arguments[0],
                 ": pipe: ", std::strerror(errno));
  }
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, err[1], STDERR_FILENO);
  if (posix_spawn(&pid_, argv[0], &files, nullptr, argv.data(), envp.data()) != 0) over_ = true;
  posix_spawn_file_actions_destroy(&files);
  close(in[0]);
  close(out[1]);
  if (!terminal) close(err[1]);
  const ssize_t written = write(in[1], input.data(), input.size());
  MUSTER_CHECK(written >= 0, arguments[0], ": write to its stdin: ", std::strerror(errno));
  close(in[1]);
  out_fd_ = out[0];
  err_fd_ = err[0];
}

Program::~Program() {
  if (!over_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  for (const int fd : {out_fd_, err_fd_}) {
    if (fd >= 0) close(fd);
  }
}

void Program::Resize(int columns, int rows) {
  winsize size{.ws_row = static_cast<unsigned short>(rows),
               .ws_col = static_cast<unsigned short>(columns),
               .ws_xpixel = 0,
               .ws_ypixel = 0};
  MUSTER_CHECK(ioctl(out_fd_, TIOCSWINSZ, &size) == 0, "TIOCSWINSZ: ", std::strerror(errno));
  // The kernel sends it only to those whose controlling terminal this is.
  Signal(SIGWINCH);
}

// Reads the available output. False: both streams are at their end.
bool Program::Pump(absl::Duration at_most) {
  pollfd fds[2] = {{out_fd_, POLLIN, 0}, {err_fd_, POLLIN, 0}};
  if (out_fd_ < 0 && err_fd_ < 0) return false;
  poll(fds, 2, static_cast<int>(absl::ToInt64Milliseconds(at_most)));
  for (int i = 0; i < 2; ++i) {
    if (fds[i].fd < 0 || fds[i].revents == 0) continue;
    char buffer[65536];
    const ssize_t count = read(fds[i].fd, buffer, sizeof(buffer));
    if (count > 0) {
      (i == 0 ? ended_.out : ended_.err).append(buffer, count);
    } else {  // a pseudo-terminal ends with EIO
      close(fds[i].fd);
      (i == 0 ? out_fd_ : err_fd_) = -1;
    }
  }
  return out_fd_ >= 0 || err_fd_ >= 0;
}

bool Program::WaitFor(const std::string& text, const std::string& stream, absl::Duration at_most) {
  const absl::Time deadline = absl::Now() + at_most;
  while (!absl::StrContains(stream, text)) {
    if (absl::Now() > deadline || !Pump(absl::Milliseconds(50))) return absl::StrContains(stream, text);
  }
  return true;
}

bool Program::WaitForOut(const std::string& text, absl::Duration at_most) { return WaitFor(text, ended_.out, at_most); }
bool Program::WaitForErr(const std::string& text, absl::Duration at_most) { return WaitFor(text, ended_.err, at_most); }

void Program::Signal(int signal) {
  if (!over_) kill(pid_, signal);
}

Ended Program::Wait(absl::Duration at_most) {
  const absl::Time deadline = absl::Now() + at_most;
  while (Pump(absl::Milliseconds(50))) {
    if (absl::Now() < deadline) continue;
    kill(pid_, SIGKILL);
    break;
  }
  int status = 0;
  if (!over_ && waitpid(pid_, &status, 0) == pid_) {
    ended_.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  over_ = true;
  return ended_;
}

Ended RunToEnd(const std::vector<std::string>& command, const Program::Environment& environment,
               const std::string& input) {
  return Program(command, environment, input).Wait();
}

}  // namespace muster::cli
