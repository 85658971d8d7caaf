#include "bench/workers/coordinator.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::bench {

Coordinator::Coordinator(std::string program, std::string folder, std::vector<std::string> flags)
    : program_(std::move(program)), folder_(std::move(folder)), flags_(std::move(flags)) {}

Coordinator::~Coordinator() { Kill(); }

bool Coordinator::Start() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  // Dies with the bench, even if the bench is killed.
  std::vector<std::string> words = {"setpriv",          "--pdeathsig", "KILL",    program_,      "--state-dir",
                                    folder_ + "/state", "--listen",    address(), "--log-level", "warn"};
  words.insert(words.end(), flags_.begin(), flags_.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, ends[1], 1);
  const int error = posix_spawnp(&pid_, words[0].c_str(), &files, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  close(ends[1]);
  // The coordinator prints a line when it serves; the end of the pipe means that it will not.
  char byte = 0;
  const bool serves = error == 0 && read(ends[0], &byte, 1) == 1;
  close(ends[0]);
  if (!serves) std::fprintf(stderr, "%s does not serve\n", program_.c_str());
  return serves;
}

void Coordinator::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(std::exchange(pid_, -1), nullptr, 0);
}

size_t Coordinator::ResidentBytes() const {
  size_t pages = 0, resident = 0;
  std::ifstream(absl::StrCat("/proc/", pid_, "/statm")) >> pages >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

absl::Duration Coordinator::CpuTime() const { return CpuTimeOf(pid_); }

absl::Duration CpuTimeOf(pid_t process) {
  clockid_t clock = 0;
  timespec time{};
  if (clock_getcpuclockid(process, &clock) != 0 || clock_gettime(clock, &time) != 0) return absl::ZeroDuration();
  return absl::DurationFromTimespec(time);
}

}  // namespace muster::bench
