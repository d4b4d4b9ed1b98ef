// What this machine's resources do for a run of a configuration: its memory and cores, its NVMe
// paths each alone and all together, with the weights that a run's stripes then have, its GPU and
// the bus, and the seconds of one micro-batch through the model's units. Seconds where it has to be
// measured; nothing where the cache file has it.
//
// What is measured while something else is using the machine is measured again, within a bound; if
// that does not help, the report says so, and nothing is kept (quiet_measurement.h).
//
// Memory:  what the parts take (host_probe.h, drive_probe.h, gpu_probe.h, unit_timer.h), one after
//          another, within the configuration's budget; all given back before it returns.
// Threads: one; blocking. Sets LibTorch's number of threads, as a run does.
// Errors:  those of the parts. Units that do not fit the budget are estimated, with a log line: the
//          plan then says what does not fit.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "aio/result.h"
#include "engine/config/config.h"
#include "engine/probe/probe_report.h"
#include "engine/probe/quiet_measurement.h"

namespace sluice::engine {

struct MachineProbeOptions {
  std::string cache_path;                // speeds_cache.h; empty: nothing is kept
  bool refresh = false;                  // measure everything, whatever is kept
  std::int64_t unix_s = 0;               // now
  std::int64_t disturbed_max_age_s = 0;  // speeds_cache.h
  bool host = true;                      // measure it
  bool units = true;                     // time them
  // Of the host that will run at once, each with the threads of one: memory and cores are measured
  // with those of all, units with one's.
  int local_ranks = 1;
  // For tests: quiet_measurement.h, and how many cores' worth of time there is (0: usable_cores()).
  ReadCpuUse cpu_use;
  double cores = 0;
  double most_spread = QuietMeasurement::kMostSpread;
  // May be empty. What is being measured, and the share of the whole probe that is done.
  std::function<void(const std::string& what, double fraction)> on_progress;
};

// What a report was made from is measured again by the next probe; everything else that is kept
// stays.
Status forget_measurements(const config::Config& config, const ProbeReport& report,
                           std::int64_t now_unix_s);

// Of what was probed, for estimate_units(). The cores' products are not measured: a modest rate is
// assumed.
EstimateRates rates_for_estimates(const config::Config& config, const ProbeReport& report);

Result<ProbeReport> probe_machine(const config::Config& config, const MachineProbeOptions& options);

}  // namespace sluice::engine
