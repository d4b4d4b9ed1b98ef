// What is used of NVML, the library of NVIDIA's driver that reports on GPUs, written down here: it
// is opened at run time, as builds and many machines have none. Names and values are those of
// nvml.h.
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

// What holds a clock down, of nvmlClocksThrottleReasons: heat, the board's or the server's power
// supply, as hardware or software found. Not the cap on power, which is usual under full load.
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
  // Null where the library has none.
  Code (*power_milliwatts)(Device* device, unsigned int* milliwatts);
  Code (*throttle_reasons)(Device* device, unsigned long long* reasons);
};

// It stays loaded. kUnsupported: there is none, or it lacks what is needed.
Result<Api> open_nvml(const std::string& library);

}  // namespace sluice::engine::nvml
