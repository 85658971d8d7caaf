#include "worker/exec/activity.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/file/read_file.h"
#include "worker/agent/gpus.h"
#include "worker/rundir/process_table.h"

namespace muster::exec {
namespace {

using rundir::ProcessRow;

// muster-step leads the session of a rank; this process is its child. Where another process leads it, as in tests, it
// has more than the program's processes.
bool IsOfRank(pid_t session, pid_t program) {
  return session == program || session == getpid() || session == getppid();
}

std::vector<ProcessRow> RowsOf(pid_t program) {
  const std::vector<ProcessRow> all = rundir::ListProcesses();
  std::multimap<pid_t, const ProcessRow*> children;
  std::vector<ProcessRow> rows;
  for (const ProcessRow& row : all) {
    if (row.pid == program) rows.push_back(row);
    children.emplace(row.parent, &row);
  }
  if (rows.empty()) return rows;
  const pid_t session = IsOfRank(rows[0].session, program) ? rows[0].session : 0;
  std::set<pid_t> seen = {program, getpid(), getppid()};
  for (const ProcessRow& row : all) {
    if (session != 0 && row.session == session && seen.insert(row.pid).second) rows.push_back(row);
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto [begin, end] = children.equal_range(rows[i].pid);
    for (auto at = begin; at != end; ++at) {
      if (seen.insert(at->second->pid).second) rows.push_back(*at->second);
    }
  }
  return rows;
}

// rchar and wchar of /proc/<pid>/io: what read and write have moved, from files, pipes and terminals.
uint64_t BytesOf(pid_t pid) {
  const absl::StatusOr<std::string> text = ReadWhole(absl::StrCat("/proc/", pid, "/io"));
  uint64_t bytes = 0;
  if (!text.ok()) return bytes;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    uint64_t number = 0;
    if ((absl::ConsumePrefix(&line, "rchar: ") || absl::ConsumePrefix(&line, "wchar: ")) &&
        absl::SimpleAtoi(line, &number)) {
      bytes += number;
    }
  }
  return bytes;
}

}  // namespace

std::set<pid_t> ProcessesOf(pid_t program) {
  std::set<pid_t> pids = {program};
  for (const ProcessRow& row : RowsOf(program)) pids.insert(row.pid);
  return pids;
}

Activity ReadActivity(pid_t program) {
  static const double ticks_per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  Activity activity;
  for (const ProcessRow& row : RowsOf(program)) {
    activity.cpu += absl::Seconds(static_cast<double>(row.cpu_ticks) / ticks_per_second);
    activity.bytes += BytesOf(row.pid);
  }
  return activity;
}

GpuLook::GpuLook(const std::vector<std::string>& environment, std::string library) : library_(std::move(library)) {
  for (absl::string_view entry : environment) {
    if (absl::ConsumePrefix(&entry, "CUDA_VISIBLE_DEVICES=")) uuids_ = absl::StrSplit(entry, ',', absl::SkipEmpty());
  }
}

std::optional<bool> GpuLook::Busy(bool anew) {
  if (uuids_.empty()) return false;
  const auto answered = [&] { return answer_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; };
  if (!answer_.valid() || (anew && answered())) {
    auto promise = std::make_shared<std::promise<bool>>();
    answer_ = promise->get_future();
    std::thread([promise, library = library_, uuids = uuids_] {
      bool busy = false;
      for (const agent::GpuUse& gpu : agent::Gpus(library).Use()) {
        if (gpu.busy > 0 && std::find(uuids.begin(), uuids.end(), gpu.uuid) != uuids.end()) busy = true;
      }
      promise->set_value(busy);
    }).detach();
  }
  if (!answered()) return std::nullopt;
  return answer_.get();
}

}  // namespace muster::exec
