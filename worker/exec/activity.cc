#include "worker/exec/activity.h"

#include <dlfcn.h>
#include <unistd.h>

#include <map>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/file/read_file.h"
#include "worker/rundir/process_table.h"

namespace muster::exec {
namespace {

using rundir::ProcessRow;

std::vector<ProcessRow> RowsOf(pid_t program) {
  std::multimap<pid_t, ProcessRow> children;
  std::vector<ProcessRow> rows;
  for (const ProcessRow& row : rundir::ListProcesses()) {
    if (row.pid == program) rows.push_back(row);
    children.emplace(row.parent, row);
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto [begin, end] = children.equal_range(rows[i].pid);
    for (auto at = begin; at != end; ++at) rows.push_back(at->second);
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

// nvml.h, "NVML API Reference"; the library comes with the driver.
class GpuLoad {
 public:
  GpuLoad() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    const bool found = Find("nvmlInit_v2", init_) && Find("nvmlShutdown", shutdown_) &&
                       Find("nvmlDeviceGetHandleByUUID", handle_) && Find("nvmlDeviceGetUtilizationRates", rates_);
    ready_ = found && init_() == 0;
  }
  ~GpuLoad() {
    if (ready_) shutdown_();
    if (library_ != nullptr) dlclose(library_);
  }
  GpuLoad(const GpuLoad&) = delete;
  GpuLoad& operator=(const GpuLoad&) = delete;

  bool IsBusy(const std::string& uuid) const {
    void* device = nullptr;
    Rates rates{};
    return ready_ && handle_(uuid.c_str(), &device) == 0 && rates_(device, &rates) == 0 &&
           (rates.gpu > 0 || rates.memory > 0);
  }

 private:
  struct Rates {
    unsigned gpu, memory;  // percent of the last sample period
  };

  template <typename Function>
  bool Find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    return function != nullptr;
  }

  void* const library_;
  bool ready_ = false;
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  int (*handle_)(const char*, void**) = nullptr;
  int (*rates_)(void*, Rates*) = nullptr;
};

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

bool GpuBusy(const std::vector<std::string>& environment) {
  for (absl::string_view entry : environment) {
    if (!absl::ConsumePrefix(&entry, "CUDA_VISIBLE_DEVICES=") || entry.empty()) continue;
    const GpuLoad load;
    for (const std::string& uuid : std::vector<std::string>(absl::StrSplit(entry, ','))) {
      if (load.IsBusy(uuid)) return true;
    }
  }
  return false;
}

}  // namespace muster::exec
