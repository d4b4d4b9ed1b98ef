// The rates of this machine's resources for a run of a configuration. It measures memory and cores;
// the GPU and the bus; and the seconds of one micro-batch through the model's units. NVMe paths are
// measured each alone, and all together with the weights of a run's stripes. Measuring takes
// seconds; values in the cache file take none.
//
// A measurement that other work disturbed is repeated, within a bound. If that does not help, the
// report says so, and the values are not cached (timed_passes.h).
//
// Memory:  that of the parts (host_probe.h, drive_probe.h, gpu_probe.h, unit_timer.h), one after
//          another, within the configuration's budget; freed before the return.
// Threads: one; blocking. Sets LibTorch's number of threads, as a run does.
// Errors:  those of the parts. Units that do not fit the budget are estimated, with a log line; the
//          plan then says what does not fit.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "aio/result.h"
#include "engine/config/config.h"
#include "engine/probe/probe_report.h"
#include "engine/probe/timed_passes.h"

namespace sluice::engine {

struct MachineProbeOptions {
  std::string cache_path;                // see speeds_cache.h; empty: no cache
  bool refresh = false;                  // measure everything, regardless of the cache
  std::int64_t unix_s = 0;               // the current time
  std::int64_t disturbed_max_age_s = 0;  // see speeds_cache.h
  bool host = true;                      // whether to measure it
  bool units = true;                     // whether to time them
  // Ranks on this host that will run at once, each with its own threads. Memory and cores are
  // measured with the threads of all ranks, units with those of one.
  int local_ranks = 1;
  // For tests: see timed_passes.h; and the available cores (0: usable_cores()).
  ReadCpuUse cpu_use;
  double cores = 0;
  double most_spread = QuietMeasurement::kMostSpread;
  // May be empty. Gets the current measurement, and the finished fraction of the whole probe.
  std::function<void(const std::string& what, double fraction)> on_progress;
};

// Makes the next probe repeat the measurements in `report`; all other cached values stay.
Status forget_measurements(const config::Config& config, const ProbeReport& report,
                           std::int64_t now_unix_s);

// kInvalidArgument: fp8.enabled, for a GPU that does not multiply fp8.
Error no_fp8(const std::string& gpu);
// The same, if that is this machine's GPU and the run computes on it.
Status check_fp8_of_gpu(const config::Config& config);

// The probed rates in the form for estimate_units(). The cores' products are not measured: a modest
// rate is assumed.
EstimateRates rates_for_estimates(const config::Config& config, const ProbeReport& report);

Result<ProbeReport> probe_machine(const config::Config& config, const MachineProbeOptions& options);

}  // namespace sluice::engine
