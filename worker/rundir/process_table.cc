#include "worker/rundir/process_table.h"

#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/file/read_file.h"

namespace muster::rundir {

absl::StatusOr<ProcessRow> ReadProcess(pid_t pid) {
  absl::StatusOr<std::string> content = ReadWhole(absl::StrCat("/proc/", pid, "/stat"));
  // A process that ends between open and read gives ESRCH.
  if (!content.ok() || content->empty()) return absl::NotFoundError(absl::StrCat("no process ", pid));
  // The second field is the program's name in parentheses and may itself hold any character; the rest is plain.
  const size_t close = content->rfind(')');
  std::vector<std::string> fields;
  if (close != std::string::npos) fields = absl::StrSplit(content->substr(close + 1), ' ', absl::SkipEmpty());
  ProcessRow row;
  row.pid = pid;
  if (fields.size() < 20 || !absl::SimpleAtoi(fields[1], &row.parent) || !absl::SimpleAtoi(fields[2], &row.group) ||
      !absl::SimpleAtoi(fields[3], &row.session) || !absl::SimpleAtoi(fields[19], &row.start_ticks)) {
    return absl::InternalError(absl::StrCat("/proc/", pid, "/stat has an unknown form"));
  }
  for (const int field : {11, 12, 13, 14}) {  // utime, stime, cutime, cstime
    uint64_t ticks = 0;
    if (absl::SimpleAtoi(fields[static_cast<size_t>(field)], &ticks)) row.cpu_ticks += ticks;
  }
  row.state = fields[0][0];
  return row;
}

size_t CountThreads(pid_t pid) {
  size_t count = 0;
  std::error_code error;
  std::filesystem::directory_iterator it(absl::StrCat("/proc/", pid, "/task"), error);
  for (const std::filesystem::directory_iterator end; !error && it != end; it.increment(error)) ++count;
  return count;
}

std::vector<ProcessRow> ListProcesses() {
  std::vector<ProcessRow> rows;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(it->path().filename().string(), &pid)) continue;
    if (absl::StatusOr<ProcessRow> row = ReadProcess(pid); row.ok()) rows.push_back(*row);
  }
  return rows;
}

}  // namespace muster::rundir
