#include <sched.h>
#include <sys/resource.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "cli/config.h"
#include "cli/doctor/checks.h"
#include "cli/output/format.h"
#include "common/bytes.h"
#include "common/file/read_file.h"
#include "worker/agent/node.h"

namespace muster::cli {
namespace {

constexpr uint64_t kLittleMemory = uint64_t{1024}
                                   << 20;  // a trainer with LibTorch takes about 400 MiB before its model
constexpr uint64_t kTooLittleMemory = uint64_t{512} << 20;
constexpr rlim_t kFewFiles = 4096;  // a descriptor for each stream and each worker
constexpr rlim_t kTooFewFiles = 256;
constexpr rlim_t kFewProcesses = 1024;  // threads count
constexpr rlim_t kTooFewProcesses = 128;
constexpr size_t kMaxProcBytes = 64 << 10;

// The first line of a kernel file; empty if there is none.
std::string FirstLine(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadWhole(path, kMaxProcBytes);
  return text.ok() ? std::string(absl::StripAsciiWhitespace(text->substr(0, text->find('\n')))) : "";
}

// "MemTotal:  16303428 kB"
uint64_t MemoryLine(const std::string& text, const std::string& name) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    uint64_t kib = 0;
    if (words.size() >= 2 && words[0] == name && absl::SimpleAtoi(words[1], &kib)) return kib * 1024;
  }
  return 0;
}

// The container's memory limit; 0: none.
uint64_t MemoryLimit() {
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    uint64_t bytes = 0;
    // Version 1 says "no limit" with a number near 2^63.
    if (absl::SimpleAtoi(FirstLine(path), &bytes) && bytes < uint64_t{1} << 60) return bytes;
  }
  return 0;
}

Finding Limit(const char* check, int resource, rlim_t few, rlim_t too_few, const char* what, const char* remedy) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0) return {check, Severity::kNote, absl::StrCat("cannot be read"), ""};
  // The daemons raise their soft limit to the hard limit.
  const rlim_t hard = limit.rlim_max;
  if (hard == RLIM_INFINITY) return {check, Severity::kOk, absl::StrCat("no limit of ", what), ""};
  const Severity severity = hard < too_few ? Severity::kProblem : hard < few ? Severity::kNote : Severity::kOk;
  return {check, severity, absl::StrCat("at most ", hard, " ", what), severity == Severity::kOk ? "" : remedy};
}

}  // namespace

Finding CheckSystem() {
  utsname system{};
  uname(&system);
  char library[64] = "";
  confstr(_CS_GNU_LIBC_VERSION, library, sizeof(library));  // "glibc 2.36"
  const std::string text = absl::StrCat(system.sysname, " ", system.release, " on ", system.machine, ", ", library);
  if (absl::string_view(system.machine) != "x86_64") {
    return {"system", Severity::kProblem, text, "Muster is built for x86_64; use such a machine"};
  }
  const std::vector<std::string> kernel = absl::StrSplit(system.release, absl::MaxSplits('.', 2));
  int major = 0, minor = 0;
  if (kernel.size() >= 2 && absl::SimpleAtoi(kernel[0], &major)) {
    const size_t digits = std::min(kernel[1].find_first_not_of("0123456789"), kernel[1].size());
    if (absl::SimpleAtoi(kernel[1].substr(0, digits), &minor) && std::pair(major, minor) < std::pair(5, 3)) {
      return {"system", Severity::kProblem, text,
              "daemons watch processes by pidfd_open: Linux 5.3 or newer is needed"};
    }
  }
  return {"system", Severity::kOk, text, ""};
}

Finding CheckCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  const int64_t online = sysconf(_SC_NPROCESSORS_ONLN);
  std::string text = absl::StrCat(cores, cores == 1 ? " core" : " cores");
  if (online > cores) absl::StrAppend(&text, " of ", online, " may be used");
  // "max 100000" or "150000 100000": microseconds of a period.
  const std::vector<std::string> quota = absl::StrSplit(FirstLine("/sys/fs/cgroup/cpu.max"), ' ');
  double used = 0, period = 0;
  if (quota.size() == 2 && absl::SimpleAtod(quota[0], &used) && absl::SimpleAtod(quota[1], &period) && period > 0 &&
      used / period < cores) {
    return {"cores", Severity::kNote, absl::StrCat(text, ", but the container may use ", Significant(used / period)),
            "threads beyond that compete for cores: give the container more, or the worker fewer slots"};
  }
  return {"cores", Severity::kOk, text, ""};
}

Finding JudgeCpu(const std::string& model, const UsableInstructions& instructions) {
  std::string text = absl::StrCat(model.empty() ? "" : absl::StrCat(model, ", "), NameOf(instructions.usable));
  if (!instructions.limited_by.empty()) {
    absl::StrAppend(&text, " (", instructions.limited_by, " hides ", NameOf(instructions.cpu), ")");
  }
  if (HasFastBf16(instructions.usable)) {
    return {"cpu", Severity::kOk, absl::StrCat(text, ": bf16 is computed natively"), ""};
  }
  return {"cpu", Severity::kNote, absl::StrCat(text, ": bf16 is computed through fp32, at about its speed"),
          HasFastBf16(instructions.cpu) ? "unset the variable for faster bf16"
                                        : "precision: {compute: bf16} saves memory here, but no time; for time use a "
                                          "CPU with AVX-512 BF16 or AMX BF16, or a GPU"};
}

Finding CheckCpu() {
  const agent::Machine machine = agent::ReadMachine();
  return JudgeCpu(machine.cpu_model, machine.instructions);
}

Finding JudgeRankUsers(unsigned user, const std::vector<std::string>& missing) {
  if (!missing.empty()) {
    return {
        "rank users", Severity::kNote,
        absl::StrCat("a worker of this user (", user, ") runs every rank as itself: jobs of all users can read and ",
                     "remove each other's checkpoints, and the worker's key"),
        "fine for one user; for several: sudo muster-worker --run-as-owner system, with its other flags"};
  }
  if (user == 0) {
    return {"rank users", Severity::kNote,
            "a worker of root can run ranks as the users who submit jobs; without --run-as-owner every rank is root",
            "muster-worker --run-as-owner system, or run the worker as a user of its own"};
  }
  return {"rank users", Severity::kOk,
          "a worker of this user can run ranks as the users who submit jobs (muster-worker --run-as-owner)", ""};
}

Finding CheckRankUsers() { return JudgeRankUsers(geteuid(), agent::MissingToSwitchUsers()); }

Finding JudgeMemory(uint64_t total_bytes, uint64_t available_bytes, uint64_t limit_bytes) {
  std::string text = absl::StrCat(FormatBytes(available_bytes), " of ", FormatBytes(total_bytes), " available");
  if (limit_bytes > 0 && limit_bytes < total_bytes) {
    absl::StrAppend(&text, ", the container may use ", FormatBytes(limit_bytes));
    available_bytes = std::min(available_bytes, limit_bytes);
  }
  const std::string remedy =
      "a trainer needs about 400 MiB before its model: end other programs, or use another machine";
  if (available_bytes < kTooLittleMemory) return {"memory", Severity::kProblem, text, remedy};
  if (available_bytes < kLittleMemory) return {"memory", Severity::kNote, text, remedy};
  return {"memory", Severity::kOk, text, ""};
}

Finding CheckMemory() {
  const absl::StatusOr<std::string> text = ReadWhole("/proc/meminfo", kMaxProcBytes);
  if (!text.ok()) return {"memory", Severity::kProblem, "/proc/meminfo cannot be read", "mount /proc"};
  return JudgeMemory(MemoryLine(*text, "MemTotal:"), MemoryLine(*text, "MemAvailable:"), MemoryLimit());
}

std::vector<Finding> CheckLimits() {
  return {Limit("open files", RLIMIT_NOFILE, kFewFiles, kTooFewFiles, "open files",
                "raise it: ulimit -Hn 65536, LimitNOFILE= of systemd, or --ulimit nofile of docker"),
          Limit("processes", RLIMIT_NPROC, kFewProcesses, kTooFewProcesses, "processes and threads of this user",
                "raise it: ulimit -Hu 65536, TasksMax= of systemd, or --pids-limit of docker")};
}

Finding CheckClock(const Screen& screen) {
  const absl::Time now = absl::Now();
  const std::string text = DateAndTime(screen, now);
  if (now < absl::FromCivil(absl::CivilYear(2025), absl::UTCTimeZone())) {
    return {"clock", Severity::kProblem, absl::StrCat(text, ": is in the past"),
            "timedatectl set-ntp true; ages and times of jobs are shown by this clock"};
  }
  timex state{};
  if (adjtimex(&state) == TIME_ERROR) {
    return {"clock", Severity::kNote, absl::StrCat(text, ", not known to be synchronized"),
            "on the host: timedatectl set-ntp true; only times that are shown depend on it"};
  }
  return {"clock", Severity::kOk, text, ""};
}

}  // namespace muster::cli
