// NVML through dlopen: it comes with the driver, not with the build, and the few calls below have kept their form since
// NVML 5 (nvml.h, "NVML API Reference").
#include <dlfcn.h>

#include <memory>

#include "worker/agent/node.h"

namespace muster::agent {
namespace {

constexpr int kSuccess = 0;
using Device = struct nvmlDevice_st*;
struct Memory {
  unsigned long long total, free, used;
};

class Nvml {
 public:
  Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    const bool found = Find("nvmlInit_v2", init_) && Find("nvmlShutdown", shutdown_) &&
                       Find("nvmlDeviceGetCount_v2", count_) && Find("nvmlDeviceGetHandleByIndex_v2", handle_) &&
                       Find("nvmlDeviceGetUUID", uuid_) && Find("nvmlDeviceGetName", name_) &&
                       Find("nvmlDeviceGetMemoryInfo", memory_);
    ready_ = found && init_() == kSuccess;
  }
  ~Nvml() {
    if (ready_) shutdown_();
    if (library_ != nullptr) dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::vector<Gpu> List() const {
    std::vector<Gpu> gpus;
    unsigned count = 0;
    if (!ready_ || count_(&count) != kSuccess) return gpus;
    for (unsigned i = 0; i < count; ++i) {
      Device device = nullptr;
      char uuid[96] = {};
      char name[96] = {};
      Memory memory{};
      if (handle_(i, &device) != kSuccess || uuid_(device, uuid, sizeof uuid) != kSuccess ||
          name_(device, name, sizeof name) != kSuccess || memory_(device, &memory) != kSuccess) {
        continue;  // fallen off the bus: the others still work
      }
      gpus.push_back({uuid, name, memory.total});
    }
    return gpus;
  }

 private:
  template <typename Function>
  bool Find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    return function != nullptr;
  }

  void* const library_;
  bool ready_ = false;
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  int (*count_)(unsigned*) = nullptr;
  int (*handle_)(unsigned, Device*) = nullptr;
  int (*uuid_)(Device, char*, unsigned) = nullptr;
  int (*name_)(Device, char*, unsigned) = nullptr;
  int (*memory_)(Device, Memory*) = nullptr;
};

}  // namespace

std::vector<Gpu> ListGpus() { return Nvml().List(); }

}  // namespace muster::agent
