#include "engine/observe/nvml_api.h"

#include <dlfcn.h>

namespace sluice::engine::nvml {

Result<Api> open_nvml(const std::string& library) {
  void* const handle = ::dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    return Error(ErrorCode::kUnsupported, why != nullptr ? why : library + " cannot be loaded");
  }
  Api api{};
  const char* missing = nullptr;
  const auto look_up = [&]<typename Function>(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(::dlsym(handle, name));
    return function != nullptr;
  };
  const auto need = [&](auto*& function, const char* name) {
    if (!look_up(function, name)) missing = name;
  };
  need(api.init, "nvmlInit_v2");
  need(api.shutdown, "nvmlShutdown");
  need(api.error_string, "nvmlErrorString");
  need(api.handle_by_bus_id, "nvmlDeviceGetHandleByPciBusId_v2");
  need(api.utilization, "nvmlDeviceGetUtilizationRates");
  look_up(api.power_milliwatts, "nvmlDeviceGetPowerUsage");
  look_up(api.throttle_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
  if (missing != nullptr) return Error(ErrorCode::kUnsupported, library + " has no " + missing);
  return api;
}

}  // namespace sluice::engine::nvml
