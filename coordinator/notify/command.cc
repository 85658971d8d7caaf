#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/process/spawn.h"
#include "common/proto_time.h"
#include "common/utf8.h"
#include "coordinator/notify/send.h"

namespace muster::notify {
namespace {

constexpr size_t kKeptOutput = 500;
constexpr int kLookMilliseconds = 20;   // for its end and `stop`
constexpr int kMostReadsAtTheEnd = 16;  // what it started may write on

struct Pipe {
  int read = -1, write = -1;
  bool Open() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    read = ends[0];
    write = ends[1];
    return true;
  }
  void CloseRead() { close(std::exchange(read, -1)); }
  void CloseWrite() { close(std::exchange(write, -1)); }
  ~Pipe() {
    if (read >= 0) close(read);
    if (write >= 0) close(write);
  }
};

// Reads what is there, and keeps the end of it. False: the output is closed.
bool Drain(int from, std::string& kept) {
  char buffer[4096];
  const ssize_t count = read(from, buffer, sizeof(buffer));
  if (count <= 0) return count < 0 && (errno == EAGAIN || errno == EINTR);
  kept.append(buffer, static_cast<size_t>(count));
  if (kept.size() > kKeptOutput) kept.erase(0, kept.size() - kKeptOutput);
  return true;
}

}  // namespace

std::string BodyOf(const Notice& notice) {
  const StateEvent& event = notice.event;
  nlohmann::ordered_json body = {
      {"id", notice.id},
      {"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", FromProto(event.time()), absl::UTCTimeZone())},
      {"kind", event.kind()},
      {"message", event.message()}};
  if (!event.job().empty()) {
    body["job"] = event.job();
    body["state"] = JobState_Name(event.job_state());
    body["user"] = notice.user;
    body["project"] = notice.project;
    body["labels"] = notice.labels;
  }
  if (event.generation() > 0) body["generation"] = event.generation();
  if (!event.node().empty()) body["node"] = event.node();
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::Status RunCommand(const std::vector<std::string>& command, absl::Duration timeout, const std::string& body,
                        const absl::Notification& stop) {
  Pipe input, output;
  if (!input.Open() || !output.Open()) return absl::ErrnoToStatus(errno, "cannot make a pipe");
  fcntl(input.write, F_SETFL, O_NONBLOCK);
  fcntl(output.read, F_SETFL, O_NONBLOCK);
  const absl::StatusOr<pid_t> pid = Spawn({.arguments = command,
                                           .environment = OwnEnvironment(),
                                           .input = input.read,
                                           .output = output.write,
                                           .error = output.write,
                                           .leads = Program::Leads::kSession});
  if (!pid.ok()) return pid.status();
  input.CloseRead();
  output.CloseWrite();
  const RealClock clock;
  const SteadyTime deadline = clock.Read().steady + timeout;
  absl::Status ended;
  int status = 0;
  std::string kept;
  size_t sent = 0;
  while (true) {
    pollfd ready[2] = {{output.read, POLLIN, 0}, {input.write, POLLOUT, 0}};
    poll(ready, 2, kLookMilliseconds);
    if (ready[0].revents != 0 && !Drain(output.read, kept)) output.CloseRead();
    if (ready[1].revents != 0) {
      const ssize_t count = write(input.write, body.data() + sent, body.size() - sent);
      if (count > 0) sent += static_cast<size_t>(count);
      // A program that does not read its input is content without it.
      const bool gone = count < 0 && errno != EAGAIN && errno != EINTR;
      if (gone || sent == body.size()) input.CloseWrite();
    }
    if (waitpid(*pid, &status, WNOHANG) == *pid) break;
    if (stop.HasBeenNotified()) ended = absl::CancelledError("the coordinator stops");
    if (clock.Read().steady >= deadline) {
      ended = absl::DeadlineExceededError(
          absl::StrCat(command[0], " did not end within ", absl::FormatDuration(timeout), " and was killed"));
    }
    if (ended.ok()) continue;
    kill(-*pid, SIGKILL);
    while (waitpid(*pid, &status, 0) < 0 && errno == EINTR) {
    }
    break;
  }
  for (int i = 0; i < kMostReadsAtTheEnd && output.read >= 0; ++i) {
    errno = 0;
    if (!Drain(output.read, kept) || errno == EAGAIN) break;
  }
  if (!ended.ok()) return ended;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(command[0],
                                          WIFEXITED(status) ? " exited with code " : " was killed by signal ",
                                          WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status),
                                          kept.empty() ? "" : ": ", CleanText(kept, kKeptOutput)));
}

}  // namespace muster::notify
