// GpuProfile: where a GPU's time went, kernel by kernel.
//
// A kernel's time is that between its start and its end, as the driver recorded them. Kernels that
// run concurrently (on several streams) each count in full in the list of kernels, and once in
// `busy_seconds`; the rest of the wall time was used by no kernel.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace sluice::tools {

struct GpuEvent {
  std::string name;  // a kernel's, demangled; of a copy or a fill "Memcpy ..." or "Memset ..."
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

struct GpuProfile {
  struct Kernel {
    std::string name;
    std::uint64_t calls = 0;
    double seconds = 0;
  };
  int steps = 0;
  double wall_seconds = 0;      // from the first event to the last one's end
  double busy_seconds = 0;      // of it, with a kernel running
  double copying_seconds = 0;   // with a copy or a fill running, whether a kernel ran or not
  std::vector<Kernel> kernels;  // the one that took the most first
  std::vector<Kernel> copies;   // likewise, by kind

  // For a step: this many kernels, by their short names, and one row for the rest.
  std::string table(std::size_t shown) const;
};

// Without return type and arguments, and no longer than a line of a table has room for.
std::string short_kernel_name(const std::string& demangled);

// Of `steps` steps; events in any order.
GpuProfile profile_of(std::span<const GpuEvent> events, int steps);

// Of one thread's calls, in any order, of which some call others: each name's own time, without
// that of what it called; the one that took the most first.
std::vector<GpuProfile::Kernel> self_times(std::span<const GpuEvent> calls);

// For a step, this many operators of the CPU and one row for the rest.
struct OperatorTable {
  int steps = 1;
  std::size_t shown = 0;
  double step_s = 0;  // that shares are of
};
std::string operator_table(const std::vector<GpuProfile::Kernel>& operators,
                           const OperatorTable& options);

}  // namespace sluice::tools
