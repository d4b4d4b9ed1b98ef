// GpuProfile: where a GPU's time went, kernel by kernel.
//
// A kernel's time is that between its start and its end, as the driver recorded them. Kernels that
// run concurrently (on several streams) each count in full in the list of kernels, and once in
// `busy_seconds`; the rest of the wall time was used by no kernel.
//
// Where it is known which phase of a step asked for what, PhaseTimes has each phase's own.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/observe/pass_span.h"

namespace sluice::tools {

struct GpuEvent {
  std::string name;  // a kernel's, demangled; of a copy or a fill "Memcpy ..." or "Memset ..."
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::optional<engine::PassPhase> phase = {};  // that asked for it
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

// Kernels or operators of a phase of the passes, or of no phase or only of waits: updates, the
// norm, what is fetched.
struct PhaseTimes {
  std::string name;                         // "forward", "the rest"
  double seconds = 0;                       // in all
  std::vector<GpuProfile::Kernel> kernels;  // the one that took the most first
};
// In the order of PassPhase, those that have any; empty where no event has a phase. Kernels without
// copies; operators by their own times.
std::vector<PhaseTimes> kernels_by_phase(std::span<const GpuEvent> events);
std::vector<PhaseTimes> operators_by_phase(std::span<const GpuEvent> calls);

// For a step, this many of each phase and one row for its others.
struct PhaseTable {
  int steps = 1;
  std::size_t shown = 0;
  double step_s = 0;  // that shares are of
};
std::string table_by_phase(const std::vector<PhaseTimes>& phases, const PhaseTable& options);

// For a step, this many operators of the CPU and one row for the rest.
struct OperatorTable {
  int steps = 1;
  std::size_t shown = 0;
  double step_s = 0;  // that shares are of
};
std::string operator_table(const std::vector<GpuProfile::Kernel>& operators,
                           const OperatorTable& options);

}  // namespace sluice::tools
