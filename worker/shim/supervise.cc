#include "worker/shim/supervise.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/rundir/process_table.h"

namespace muster::step {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(500);
// A longer time between two looks means that the shim itself did not run (machine asleep, cgroup frozen). The worker
// may not have run either, so time beyond this does not count against the lease.
constexpr absl::Duration kLongestLook = absl::Seconds(2);
// For output left in the pipe, and for processes that are blocked in the kernel and do not die at once.
constexpr absl::Duration kAftermath = absl::Seconds(3);
constexpr size_t kTailBytes = 64 * 1024;
constexpr size_t kLastLines = 20;
constexpr size_t kLastLineBytes = 1000;

}  // namespace

Supervisor::Supervisor(const rundir::Start& start, const rundir::Lease* lease, rundir::LogWriter& log,
                       const Clock& clock, int signals)
    : start_(start), lease_(lease), log_(log), clock_(clock), signals_(signals) {}

Ending Supervisor::Run(const Trainer& trainer) {
  trainer_ = trainer;
  ending_.orphan_grace = start_.orphan_grace;
  ending_.kill_grace = start_.kill_grace;
  lease_value_ = lease_ == nullptr ? 0 : lease_->Read();
  lease_looked_ = clock_.Read().steady;
  bool output_open = true;
  SteadyTime deadline;
  while (true) {
    const SteadyTime now = clock_.Read().steady;
    if (trainer_ended_) {
      KillDescendants();
      if ((!output_open && !children_left_) || now >= deadline) break;
    }
    pollfd fds[2] = {{signals_, POLLIN, 0}, {output_open ? trainer_.output : -1, POLLIN, 0}};
    absl::Duration wait = trainer_ended_ ? absl::Milliseconds(20) : kLook;
    if (ending_.intervention != Intervention::kNone && !ending_.killed) wait = std::min(wait, kill_at_ - now);
    poll(fds, 2,
         static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(absl::Ceil(wait, absl::Milliseconds(1))))));
    if (fds[1].revents != 0) output_open = Pump();
    const bool ran = !trainer_ended_;
    HandleSignals();
    Reap();
    if (trainer_ended_ && ran) {
      ending_.ended = clock_.Read().wall;
      deadline = clock_.Read().steady + kAftermath;
    }
    if (trainer_ended_) continue;
    CheckLease();
    const bool ending = ending_.intervention != Intervention::kNone;
    if (ending && !ending_.killed && clock_.Read().steady >= kill_at_) Kill();
  }
  if (output_open) Say("a process that the trainer started still holds its output pipe; its further output is lost");
  close(trainer_.output);
  ending_.last_lines = rundir::LastLines(std::move(tail_), kLastLines, kLastLineBytes);
  return ending_;
}

void Supervisor::HandleSignals() {
  signalfd_siginfo info{};
  while (read(signals_, &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGTERM) Terminate(Intervention::kRequested);
    if (info.ssi_signo == SIGUSR1 && !trainer_ended_) {
      if (ending_.intervention == Intervention::kNone) ending_.intervention = Intervention::kRequested;
      Kill();
    }
  }
}

void Supervisor::Reap() {
  while (true) {
    int status = 0;
    rusage usage{};
    const pid_t pid = wait4(-1, &status, WNOHANG, &usage);
    if (pid < 0) children_left_ = errno != ECHILD;
    if (pid <= 0) return;
    if (pid != trainer_.pid) continue;
    trainer_ended_ = true;
    ending_.wait_status = status;
    ending_.peak_memory_bytes = static_cast<uint64_t>(usage.ru_maxrss) * 1024;
  }
}

void Supervisor::CheckLease() {
  const SteadyTime now = clock_.Read().steady;
  const uint64_t value = lease_ == nullptr ? lease_value_ : lease_->Read();
  lease_stood_ = value != lease_value_ ? absl::ZeroDuration()
                                       : lease_stood_ + std::min<absl::Duration>(now - lease_looked_, kLongestLook);
  lease_value_ = value;
  lease_looked_ = now;
  if (lease_stood_ < start_.orphan_grace || ending_.intervention != Intervention::kNone) return;
  Say(absl::StrCat("no contact with the coordinator for ", absl::FormatDuration(start_.orphan_grace),
                   " (orphan_grace): ending the trainer"));
  Terminate(Intervention::kOrphaned);
}

void Supervisor::Terminate(Intervention why) {
  if (trainer_ended_ || ending_.intervention != Intervention::kNone) return;
  ending_.intervention = why;
  kill_at_ = clock_.Read().steady + start_.kill_grace;
  kill(-trainer_.pid, SIGTERM);
  kill(-trainer_.pid, SIGCONT);  // a stopped process does not see SIGTERM
}

void Supervisor::Kill() {
  ending_.killed = true;
  kill(-trainer_.pid, SIGKILL);
}

// Processes that left the trainer's group are children of this process, because it is a subreaper.
void Supervisor::KillDescendants() {
  if (!children_left_) return;
  for (const rundir::ProcessRow& row : rundir::ListProcesses()) {
    if (row.parent == getpid() && row.state != 'Z') kill(row.pid, SIGKILL);
  }
}

bool Supervisor::Pump() {
  char buffer[64 * 1024];
  const ssize_t n = read(trainer_.output, buffer, sizeof buffer);
  if (n == 0) return false;
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  tail_.append(buffer, static_cast<size_t>(n));
  if (tail_.size() > 2 * kTailBytes) tail_.erase(0, tail_.size() - kTailBytes);
  // On a full disk, the log counts the missing bytes and reports them later.
  log_.Append(std::string_view(buffer, static_cast<size_t>(n))).IgnoreError();
  return true;
}

void Supervisor::Say(const std::string& line) { log_.Append(absl::StrCat("[muster-step] ", line, "\n")).IgnoreError(); }

}  // namespace muster::step
