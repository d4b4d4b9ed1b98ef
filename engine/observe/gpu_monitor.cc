#include "engine/observe/gpu_monitor.h"

#include <dlfcn.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "aio/result.h"

namespace sluice::engine {

namespace nvml {

// The part of NVML's API that Sluice uses; NVML is the monitoring library of NVIDIA's driver. It is
// declared here because the library is opened at run time: many machines do not have it. Names and
// values are those of nvml.h.
struct Device;     // nvmlDevice_st
using Code = int;  // nvmlReturn_t
constexpr Code kSuccess = 0;
constexpr Code kNotSupported = 3;
constexpr Code kGpuIsLost = 15;

struct Utilization {  // nvmlUtilization_t: percent
  unsigned int gpu;
  unsigned int memory;
};

// Reasons for a throttled clock, from nvmlClocksThrottleReasons: heat, or the power supply of the
// board or the server, as detected by hardware or software. The power cap is excluded, because
// reaching it is usual under full load.
constexpr unsigned long long kHardwareSlowdown = 0x8;
constexpr unsigned long long kSoftwareThermal = 0x20;
constexpr unsigned long long kHardwareThermal = 0x40;
constexpr unsigned long long kPowerBrake = 0x80;

constexpr unsigned long long kThrottled =
    kHardwareSlowdown | kSoftwareThermal | kHardwareThermal | kPowerBrake;

struct Api {
  Code (*init)();
  Code (*shutdown)();
  const char* (*error_string)(Code code);
  Code (*handle_by_bus_id)(const char* bus_id, Device** device);
  Code (*utilization)(Device* device, Utilization* utilization);
  // Null if the library lacks it.
  Code (*power_milliwatts)(Device* device, unsigned int* milliwatts);
  Code (*throttle_reasons)(Device* device, unsigned long long* reasons);
};

// The library stays loaded. kUnsupported: there is none, or it lacks a required function.
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

}  // namespace nvml

namespace {

using MonitorClock = std::chrono::steady_clock;

constexpr std::chrono::seconds kDriverPatience{1};
constexpr std::chrono::seconds kFreshSample{3};

// Samples one GPU, as long as the driver answers.
class Sampler {
 public:
  Sampler(const nvml::Api& api, nvml::Device* device) : api_(api), device_(device) {}

  // nullopt: the GPU is lost.
  std::optional<GpuUse> sample() {
    GpuUse use;
    nvml::Utilization utilization{};
    if (asks(api_.utilization, &utilization) && utilization.gpu <= 100)
      use.utilization_percent = utilization.gpu;
    unsigned int milliwatts = 0;
    if (asks(api_.power_milliwatts, &milliwatts)) use.power_watts = 1e-3 * milliwatts;
    unsigned long long reasons = 0;
    if (asks(api_.throttle_reasons, &reasons))
      use.throttled_percent = (reasons & nvml::kThrottled) != 0 ? 100 : 0;
    return is_lost_ ? std::nullopt : std::optional(use);
  }

 private:
  // An unsupported query is made only once.
  template <typename Value>
  bool asks(nvml::Code (*&question)(nvml::Device*, Value*), Value* answer) {
    if (question == nullptr || is_lost_) return false;
    const nvml::Code code = question(device_, answer);
    is_lost_ = code == nvml::kGpuIsLost;
    if (code == nvml::kNotSupported) question = nullptr;
    return code == nvml::kSuccess;
  }

  nvml::Api api_;
  nvml::Device* device_;
  bool is_lost_ = false;
};

}  // namespace

struct GpuMonitor::Shared {
  struct Mean {
    double sum = 0;
    int count = 0;
    void add(const std::optional<double>& value) {
      if (!value) return;
      sum += *value;
      ++count;
    }
    std::optional<double> value() const {
      return count > 0 ? std::optional(sum / count) : std::nullopt;
    }
  };

  mutable std::mutex mutex;  // guards everything below
  std::condition_variable changed;
  bool stops = false;
  bool has_ended = false;
  std::string problem;
  Mean utilization;
  Mean power;
  Mean throttled;
  GpuUse last;
  MonitorClock::time_point last_at;

  void add(const GpuUse& use) {
    utilization.add(use.utilization_percent);
    power.add(use.power_watts);
    throttled.add(use.throttled_percent);
    last = use;
    last_at = MonitorClock::now();
  }
};

GpuUse use_of_all(std::span<const GpuUse> ranks) {
  GpuUse all;
  int busy = 0;
  std::size_t powered = 0;
  for (const GpuUse& rank : ranks) {
    if (rank.utilization_percent) {
      all.utilization_percent = all.utilization_percent.value_or(0) + *rank.utilization_percent;
      ++busy;
    }
    if (rank.power_watts) {
      all.power_watts = all.power_watts.value_or(0) + *rank.power_watts;
      ++powered;
    }
    if (rank.throttled_percent)
      all.throttled_percent = std::max(all.throttled_percent.value_or(0), *rank.throttled_percent);
  }
  if (busy > 0) *all.utilization_percent /= busy;
  if (powered < ranks.size()) all.power_watts.reset();
  return all;
}

GpuMonitor::GpuMonitor(Options options) : shared_(std::make_shared<Shared>()) {
  try {
    thread_ = std::thread([shared = shared_, options = std::move(options)] {
      work(*shared, options);
      const std::lock_guard lock(shared->mutex);
      shared->has_ended = true;
      shared->changed.notify_all();
    });
  } catch (const std::system_error& error) {  // the thread limit is reached
    shared_->problem = error.what();
  }
}

GpuMonitor::~GpuMonitor() {
  if (!thread_.joinable()) return;
  std::unique_lock lock(shared_->mutex);
  shared_->stops = true;
  shared_->changed.notify_all();
  const bool has_ended =
      shared_->changed.wait_for(lock, kDriverPatience, [this] { return shared_->has_ended; });
  lock.unlock();
  if (has_ended)
    thread_.join();
  else
    thread_.detach();  // it waits for the driver, and owns what it needs
}

void GpuMonitor::work(Shared& shared, const Options& options) {
  const auto give_up = [&shared](std::string why) {
    const std::lock_guard lock(shared.mutex);
    shared.problem = std::move(why);
  };
  const auto opened = nvml::open_nvml(options.library);
  if (!opened.ok()) return give_up(opened.error().message());
  const nvml::Api& api = *opened;
  const auto failed = [&](const char* call, nvml::Code code) {
    const char* const words = api.error_string(code);
    give_up(std::string(call) + ": " + (words != nullptr ? words : std::to_string(code)));
  };
  if (const nvml::Code code = api.init(); code != nvml::kSuccess)
    return failed("nvmlInit_v2", code);
  nvml::Device* device = nullptr;
  const nvml::Code code = api.handle_by_bus_id(options.bus_id.c_str(), &device);
  if (code == nvml::kSuccess) {
    Sampler sampler(api, device);
    std::unique_lock lock(shared.mutex);
    while (!shared.stops) {
      lock.unlock();
      const auto use = sampler.sample();
      lock.lock();
      if (!use) {
        shared.problem = "the driver has lost the GPU";
        break;
      }
      shared.add(*use);
      shared.changed.wait_for(lock, options.every, [&] { return shared.stops; });
    }
  } else {
    failed("nvmlDeviceGetHandleByPciBusId_v2", code);
  }
  api.shutdown();
}

void GpuMonitor::restart() {
  const std::lock_guard lock(shared_->mutex);
  shared_->utilization = shared_->power = shared_->throttled = Shared::Mean();
}

GpuUse GpuMonitor::use() const {
  const std::lock_guard lock(shared_->mutex);
  GpuUse use{.utilization_percent = shared_->utilization.value(),
             .power_watts = shared_->power.value(),
             .throttled_percent = shared_->throttled.value()};
  if (use == GpuUse() && MonitorClock::now() - shared_->last_at < kFreshSample) use = shared_->last;
  return use;
}

std::string GpuMonitor::problem() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->problem;
}

}  // namespace sluice::engine
