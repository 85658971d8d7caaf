#include <dirent.h>
#include <dlfcn.h>
#include <unistd.h>

#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/config.h"
#include "cli/doctor/checks.h"
#include "cli/output/format.h"
#include "common/bytes.h"
#include "worker/agent/node.h"

namespace muster::cli {
namespace {

// /dev/nvidia0, /dev/nvidia1, ...
int CountDevices() {
  int count = 0;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/dev"), closedir);
  if (folder == nullptr) return 0;
  while (const dirent* entry = readdir(folder.get())) {
    const absl::string_view name = entry->d_name;
    count += absl::StartsWith(name, "nvidia") && name.size() > 6 && absl::ascii_isdigit(name[6]) ? 1 : 0;
  }
  return count;
}

bool HasNvml() {
  void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return false;
  dlclose(library);
  return true;
}

}  // namespace

std::vector<Finding> CheckGpus() {
  const std::string driver = "/proc/driver/nvidia/version";
  const int devices = CountDevices();
  const bool has_driver = access(driver.c_str(), R_OK) == 0;
  if (devices == 0 && !has_driver) {
    return {{"gpus", Severity::kOk, "none: jobs with device auto run on the cores", ""}};
  }
  if (devices == 0) {
    return {{"gpus", Severity::kProblem, "there is a driver, but no device /dev/nvidia0",
             "in a container: start it with --gpus all; else: nvidia-modprobe -u -c=0"}};
  }
  if (!HasNvml()) {
    return {{"gpus", Severity::kProblem, absl::StrCat(devices, " devices, but libnvidia-ml.so.1 is missing"),
             "install the driver's libraries; in a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility"}};
  }
  const std::vector<agent::Gpu> gpus = agent::Gpus().List();
  if (gpus.empty()) {
    return {{"gpus", Severity::kProblem, absl::StrCat(devices, " devices, but NVML lists none"),
             "nvidia-smi says why; a driver that was updated under a running system needs a restart"}};
  }
  std::vector<Finding> findings;
  for (const agent::Gpu& gpu : gpus) {
    findings.push_back({"gpus", Severity::kOk, absl::StrCat(gpu.model, ", ", FormatBytes(gpu.memory_bytes)), ""});
  }
  if (!agent::IsCudaBuild()) {
    findings.push_back({"gpus", Severity::kNote, "this build does not use them",
                        "install a build of Muster for CUDA: jobs with device auto run on the cores until then"});
  }
  return findings;
}

}  // namespace muster::cli
