#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "worker/rundir/durable_file.h"
#include "worker/rundir/rundir.h"

namespace muster::rundir {
namespace {

struct Stat {
  char state = '?';
  uint64_t start_ticks = 0;
};

absl::StatusOr<Stat> ReadStat(pid_t pid) {
  absl::StatusOr<std::string> content = ReadWhole(absl::StrCat("/proc/", pid, "/stat"));
  // A process that ends between open and read gives ESRCH.
  if (!content.ok() || content->empty()) return absl::NotFoundError(absl::StrCat("no process ", pid));
  // The second field is the program's name in parentheses and may itself hold any character; the rest is plain.
  const size_t close = content->rfind(')');
  std::vector<std::string> fields;
  if (close != std::string::npos) fields = absl::StrSplit(content->substr(close + 1), ' ', absl::SkipEmpty());
  Stat stat;
  if (fields.size() < 20 || !absl::SimpleAtoi(fields[19], &stat.start_ticks)) {
    return absl::InternalError(absl::StrCat("/proc/", pid, "/stat has an unknown form"));
  }
  stat.state = fields[0][0];
  return stat;
}

}  // namespace

absl::StatusOr<std::string> ReadBootId() {
  absl::StatusOr<std::string> id = ReadWhole("/proc/sys/kernel/random/boot_id");
  if (id.ok()) absl::StripAsciiWhitespace(&*id);
  return id;
}

absl::StatusOr<ProcessId> Identify(pid_t pid) {
  absl::StatusOr<Stat> stat = ReadStat(pid);
  if (!stat.ok()) return stat.status();
  absl::StatusOr<std::string> boot_id = ReadBootId();
  if (!boot_id.ok()) return boot_id.status();
  return ProcessId{pid, stat->start_ticks, *boot_id};
}

bool IsAlive(const ProcessId& process) {
  if (process.pid <= 0) return false;
  absl::StatusOr<Stat> stat = ReadStat(process.pid);
  if (!stat.ok() || stat->start_ticks != process.start_ticks) return false;
  if (stat->state == 'Z' || stat->state == 'X') return false;
  absl::StatusOr<std::string> boot_id = ReadBootId();
  return boot_id.ok() && *boot_id == process.boot_id;
}

}  // namespace muster::rundir
