// The part of NVML's API that Sluice uses; NVML is the monitoring library of NVIDIA's driver. It is
// declared here because the library is opened at run time: many machines do not have it. Names and
// values are those of nvml.h.
#pragma once

#include <string>

#include "aio/result.h"

namespace sluice::engine::nvml {

struct Device;  // nvmlDevice_st

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
Result<Api> open_nvml(const std::string& library);

}  // namespace sluice::engine::nvml
