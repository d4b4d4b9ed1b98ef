// GpuProfile: where a GPU's time went, kernel by kernel.
//
// A kernel's time is the time between its start and its end, as recorded by the driver. Kernels
// that run concurrently (on several streams) each count in full in the list of kernels, and once in
// `busy_seconds`. The rest of the wall time was used by no kernel.
//
// If the phase of a step that launched an event is known, PhaseTimes has the time of each phase.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/observe/pass_span.h"

namespace sluice::tools {

struct GpuEvent {
  std::string name;  // a kernel's demangled name; "Memcpy ..." or "Memset ..." for copies and fills
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::optional<engine::PassPhase> phase = {};  // the phase that launched it
};

struct GpuProfile {
  struct Kernel {
    std::string name;
    std::uint64_t calls = 0;
    double seconds = 0;
  };
  int steps = 0;
  double wall_seconds = 0;      // from the first event to the last one's end
  double busy_seconds = 0;      // with a kernel running
  double copying_seconds = 0;   // with a copy or a fill running, overlapped or not
  std::vector<Kernel> kernels;  // longest first
  std::vector<Kernel> copies;   // by kind, longest first

  // Per step: the `shown` longest kernels by their short names, and one row for the rest.
  std::string table(std::size_t shown) const;
};

// Without return type and arguments, shortened to fit into a table's line.
std::string short_kernel_name(const std::string& demangled);

// The profile of `steps` steps. Events may be in any order.
GpuProfile profile_of(std::span<const GpuEvent> events, int steps);

// Self times of one thread's calls, which may be nested and in any order: the time of each name
// without its callees, longest first.
std::vector<GpuProfile::Kernel> self_times(std::span<const GpuEvent> calls);

// Kernels or operators of one phase of the passes. "The rest" has events without a phase: updates,
// the norm, fetches.
struct PhaseTimes {
  std::string name;                         // "forward", "the rest"
  double seconds = 0;                       // in total
  std::vector<GpuProfile::Kernel> kernels;  // longest first
};
// In the order of PassPhase, only phases that have events; empty if no event has a phase. Kernels
// are without copies; operators count with their self times.
std::vector<PhaseTimes> kernels_by_phase(std::span<const GpuEvent> events);
std::vector<PhaseTimes> operators_by_phase(std::span<const GpuEvent> calls);

// Per step: this many kernels or operators of each phase, and one row for the phase's others.
struct PhaseTable {
  int steps = 1;
  std::size_t shown = 0;
  double step_s = 0;  // base of the shares
};
std::string table_by_phase(const std::vector<PhaseTimes>& phases, const PhaseTable& options);

// Per step: this many CPU operators and one row for the rest.
struct OperatorTable {
  int steps = 1;
  std::size_t shown = 0;
  double step_s = 0;  // base of the shares
};
std::string operator_table(const std::vector<GpuProfile::Kernel>& operators,
                           const OperatorTable& options);

}  // namespace sluice::tools
