#include "absl/strings/ascii.h"
#include "common/file/read_file.h"
#include "worker/rundir/process_table.h"
#include "worker/rundir/rundir.h"

namespace muster::rundir {

absl::StatusOr<std::string> ReadBootId() {
  absl::StatusOr<std::string> id = ReadWhole("/proc/sys/kernel/random/boot_id");
  if (id.ok()) absl::StripAsciiWhitespace(&*id);
  return id;
}

absl::StatusOr<ProcessId> Identify(pid_t pid) {
  absl::StatusOr<ProcessRow> row = ReadProcess(pid);
  if (!row.ok()) return row.status();
  absl::StatusOr<std::string> boot_id = ReadBootId();
  if (!boot_id.ok()) return boot_id.status();
  return ProcessId{pid, row->start_ticks, *boot_id};
}

bool IsAlive(const ProcessId& process) {
  if (process.pid <= 0) return false;
  absl::StatusOr<ProcessRow> row = ReadProcess(process.pid);
  if (!row.ok() || row->start_ticks != process.start_ticks || row->state == 'Z' || row->state == 'X') return false;
  absl::StatusOr<std::string> boot_id = ReadBootId();
  return boot_id.ok() && *boot_id == process.boot_id;
}

}  // namespace muster::rundir
