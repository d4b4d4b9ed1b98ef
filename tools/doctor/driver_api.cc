#include "tools/doctor/driver_api.h"

#include <dlfcn.h>

namespace sluice::doctor {
namespace {

class Library {
 public:
  explicit Library(const std::string& name)
      : name_(name), handle_(::dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL)) {
    if (handle_ != nullptr) return;
    const char* const why = ::dlerror();
    problem_ = Error(ErrorCode::kNotFound, why != nullptr ? why : name + " cannot be loaded");
  }

  template <typename Function>
  void need(Function*& function, const char* name) {
    if (!problem_.ok()) return;
    function = reinterpret_cast<Function*>(::dlsym(handle_, name));
    if (function == nullptr) problem_ = Error(ErrorCode::kUnsupported, name_ + " has no " + name);
  }

  const Status& problem() const { return problem_; }

 private:
  std::string name_;
  void* handle_;
  Status problem_;
};

}  // namespace

Result<cuda::Api> cuda::open_cuda(const std::string& library) {
  Api api{};
  Library opened(library);
  opened.need(api.init, "cuInit");
  opened.need(api.driver_version, "cuDriverGetVersion");
  opened.need(api.device_count, "cuDeviceGetCount");
  opened.need(api.device, "cuDeviceGet");
  opened.need(api.name, "cuDeviceGetName");
  opened.need(api.total_memory, "cuDeviceTotalMem_v2");
  opened.need(api.attribute, "cuDeviceGetAttribute");
  opened.need(api.bus_id, "cuDeviceGetPCIBusId");
  opened.need(api.can_access_peer, "cuDeviceCanAccessPeer");
  opened.need(api.error_string, "cuGetErrorString");
  SLUICE_RETURN_IF_ERROR(opened.problem());
  return api;
}

Result<nvml::Api> nvml::open_nvml(const std::string& library) {
  Api api{};
  Library opened(library);
  opened.need(api.init, "nvmlInit_v2");
  opened.need(api.shutdown, "nvmlShutdown");
  opened.need(api.driver_version, "nvmlSystemGetDriverVersion");
  opened.need(api.handle_by_bus_id, "nvmlDeviceGetHandleByPciBusId_v2");
  opened.need(api.memory, "nvmlDeviceGetMemoryInfo");
  SLUICE_RETURN_IF_ERROR(opened.problem());
  return api;
}

}  // namespace sluice::doctor
