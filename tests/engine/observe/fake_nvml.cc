// The functions of NVML that GpuMonitor uses. Tests control it with fake_nvml_*() at the end.
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

namespace {

constexpr int kInvalidArgument = 2;
constexpr int kNotFound = 6;

std::atomic<int> init_code{0};
std::atomic<int> utilization_code{0};
std::atomic<unsigned int> utilization{0};
std::atomic<unsigned long long> reasons{0};
std::atomic<int> other_code{0};
std::atomic<bool> hangs{false};
std::atomic<int> calls{0};
std::atomic<int> users{0};
int device;

void wait_while_hanging() {
  while (hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

// These names are NVML's.
// NOLINTBEGIN(readability-identifier-naming)
extern "C" {

struct FakeUtilization {
  unsigned int gpu;
  unsigned int memory;
};

int nvmlInit_v2() {
  wait_while_hanging();
  if (init_code == 0) ++users;
  return init_code;
}
int nvmlShutdown() {
  --users;
  return 0;
}
const char* nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : "Some Error"; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** found) {
  if (std::strcmp(bus_id, "0000:18:00.0") != 0) return kNotFound;
  *found = &device;
  return 0;
}
#ifndef FAKE_NVML_IS_OLD
int nvmlDeviceGetUtilizationRates(void* of, FakeUtilization* found) {
  wait_while_hanging();
  if (of != &device) return kInvalidArgument;
  ++calls;
  *found = {utilization, 0};
  return utilization_code;
}
#endif
int nvmlDeviceGetPowerUsage(void* of, unsigned int* milliwatts) {
  if (of != &device) return kInvalidArgument;
  *milliwatts = 312'500;
  return other_code;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* of, unsigned long long* found) {
  if (of != &device) return kInvalidArgument;
  *found = reasons;
  return other_code;
}
// NOLINTEND(readability-identifier-naming)

void fake_nvml_reset() {
  init_code = utilization_code = other_code = calls = 0;
  utilization = 0;
  reasons = 0;
  hangs = false;
}
void fake_nvml_init_code(int code) { init_code = code; }
void fake_nvml_utilization(int code, unsigned int percent) {
  utilization_code = code;
  utilization = percent;
}
void fake_nvml_reasons(unsigned long long wanted) { reasons = wanted; }
void fake_nvml_other_code(int code) { other_code = code; }
void fake_nvml_hangs(bool wanted) { hangs = wanted; }
int fake_nvml_calls() { return calls; }
int fake_nvml_users() { return users; }

}  // extern "C"
