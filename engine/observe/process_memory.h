// This process's memory as the kernel reports it (/proc/self/status).
#pragma once

#include <cstdint>
#include <string_view>

#include "aio/result.h"

namespace sluice::engine {

struct ProcessMemory {
  std::uint64_t resident_bytes = 0;       // VmRSS
  std::uint64_t peak_resident_bytes = 0;  // VmHWM
  std::uint64_t pinned_bytes = 0;         // VmPin: by devices; io_uring's buffers, and CUDA's with
                                          // drivers that account for them
  std::uint64_t locked_bytes = 0;         // VmLck: by mlock
};

// kUnsupported if there is no such file, or it lacks a line.
Result<ProcessMemory> process_memory();
Result<ProcessMemory> parse_process_status(std::string_view text);

}  // namespace sluice::engine
