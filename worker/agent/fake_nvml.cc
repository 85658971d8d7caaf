// A library with NVML's interface (nvml.h, "NVML API Reference") and three made-up GPUs; the second does not answer.
#include <cstring>

extern "C" {

struct nvmlDevice_st {
  int index;
};
struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned gpu, memory;
};
constexpr int kSuccess = 0, kGpuIsLost = 15;
constexpr unsigned long long kMemory = 80ull << 30;

int nvmlInit_v2() { return kSuccess; }
int nvmlShutdown() { return kSuccess; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 3;
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_st** device) {
  static nvmlDevice_st devices[3] = {{0}, {1}, {2}};
  *device = &devices[index];
  return index == 1 ? kGpuIsLost : kSuccess;
}
int nvmlDeviceGetUUID(nvmlDevice_st* device, char* uuid, unsigned length) {
  std::strncpy(uuid, device->index == 0 ? "GPU-a" : "GPU-c", length);
  return kSuccess;
}
int nvmlDeviceGetName(nvmlDevice_st*, char* name, unsigned length) {
  std::strncpy(name, "NVIDIA H100 80GB HBM3", length);
  return kSuccess;
}
int nvmlDeviceGetMemoryInfo(nvmlDevice_st* device, Memory* memory) {
  memory->total = kMemory;
  memory->used = device->index == 0 ? 20ull << 30 : 1ull << 30;
  memory->free = memory->total - memory->used;
  return kSuccess;
}
int nvmlDeviceGetUtilizationRates(nvmlDevice_st* device, Utilization* rates) {
  *rates = device->index == 0 ? Utilization{87, 40} : Utilization{0, 0};
  return kSuccess;
}

}  // extern "C"
