// The parts of the APIs of NVIDIA's driver that the doctor uses: CUDA's driver API (libcuda) and
// the monitoring library (NVML). They are declared here because the libraries are opened at run
// time. A machine without a GPU does not have them. Names and values are those of cuda.h and
// nvml.h.
//
// Opened libraries stay loaded.
// Errors: kNotFound if there is no library, in the loader's words; kUnsupported if it lacks a
//         function.
#pragma once

#include <cstddef>
#include <string>

#include "aio/result.h"

namespace sluice::doctor::cuda {

using Code = int;    // CUresult
using Device = int;  // CUdevice

constexpr Code kSuccess = 0;
constexpr Code kStubLibrary = 34;
constexpr Code kNoDevice = 100;
constexpr Code kSystemNotReady = 802;
constexpr Code kDriverMismatch = 803;

constexpr int kComputeCapabilityMajor = 75;
constexpr int kComputeCapabilityMinor = 76;

struct Api {
  Code (*init)(unsigned int flags);
  Code (*driver_version)(int* version);
  Code (*device_count)(int* count);
  Code (*device)(Device* device, int ordinal);
  Code (*name)(char* name, int length, Device device);
  Code (*total_memory)(std::size_t* bytes, Device device);
  Code (*attribute)(int* value, int attribute, Device device);
  Code (*bus_id)(char* bus_id, int length, Device device);
  Code (*can_access_peer)(int* can, Device device, Device peer);
  Code (*error_string)(Code code, const char** text);
};
Result<Api> open_cuda(const std::string& library);

}  // namespace sluice::doctor::cuda

namespace sluice::doctor::nvml {

struct Device;  // nvmlDevice_st

using Code = int;  // nvmlReturn_t
constexpr Code kSuccess = 0;

struct Memory {  // nvmlMemory_t: bytes
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

struct Api {
  Code (*init)();
  Code (*shutdown)();
  Code (*driver_version)(char* version, unsigned int length);
  Code (*handle_by_bus_id)(const char* bus_id, Device** device);
  Code (*memory)(Device* device, Memory* memory);
};
Result<Api> open_nvml(const std::string& library);

}  // namespace sluice::doctor::nvml
