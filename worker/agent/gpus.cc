// NVML through dlopen: it comes with the driver, not with the build, and the few calls below have kept their form since
// NVML 5 (nvml.h, "NVML API Reference").
#include "worker/agent/gpus.h"

#include <dlfcn.h>

#include <functional>

namespace muster::agent {
namespace {

constexpr int kSuccess = 0;
using Device = struct nvmlDevice_st*;
struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned gpu, memory;  // percent
};

}  // namespace

class Gpus::Nvml {
 public:
  explicit Nvml(const std::string& library) : library_(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    const bool found = Find("nvmlInit_v2", init_) && Find("nvmlShutdown", shutdown_) &&
                       Find("nvmlDeviceGetCount_v2", count_) && Find("nvmlDeviceGetHandleByIndex_v2", handle_) &&
                       Find("nvmlDeviceGetUUID", uuid_) && Find("nvmlDeviceGetName", name_) &&
                       Find("nvmlDeviceGetMemoryInfo", memory_) && Find("nvmlDeviceGetUtilizationRates", utilization_);
    ready_ = found && init_() == kSuccess;
  }
  ~Nvml() {
    if (ready_) shutdown_();
    if (library_ != nullptr) dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // Those that answer; one that has fallen off the bus does not.
  void ForEach(const std::function<void(Device, const Gpu&, const Memory&)>& take) const {
    unsigned count = 0;
    if (!ready_ || count_(&count) != kSuccess) return;
    for (unsigned i = 0; i < count; ++i) {
      Device device = nullptr;
      char uuid[96] = {};
      char name[96] = {};
      Memory memory{};
      if (handle_(i, &device) != kSuccess || uuid_(device, uuid, sizeof uuid) != kSuccess ||
          name_(device, name, sizeof name) != kSuccess || memory_(device, &memory) != kSuccess) {
        continue;
      }
      take(device, {uuid, name, memory.total}, memory);
    }
  }
  // 0 to 1; 0: not known.
  double Busy(Device device) const {
    Utilization rates{};
    return utilization_(device, &rates) == kSuccess ? rates.gpu / 100.0 : 0;
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
  int (*utilization_)(Device, Utilization*) = nullptr;
};

Gpus::Gpus(const std::string& library) : nvml_(std::make_unique<Nvml>(library)) {}
Gpus::~Gpus() = default;

std::vector<Gpu> Gpus::List() const {
  std::vector<Gpu> all;
  nvml_->ForEach([&](Device, const Gpu& gpu, const Memory&) { all.push_back(gpu); });
  return all;
}

std::vector<GpuUse> Gpus::Use() const {
  std::vector<GpuUse> all;
  nvml_->ForEach([&](Device device, const Gpu& gpu, const Memory& memory) {
    all.push_back({gpu.uuid, nvml_->Busy(device), memory.used});
  });
  return all;
}

}  // namespace muster::agent
