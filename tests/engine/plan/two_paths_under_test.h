// A run whose state is stored on two simulated drives of given sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aio/units.h"
#include "tests/engine/plan/plan_under_test.h"
#include "tests/engine/run/made_up_drives.h"

namespace sluice::engine {

// GPT-2 XL with its state on two drives: 14.6 GiB.
inline config::Config over_two_paths(const std::vector<std::string>& more = {}) {
  return planned_config(std::vector<std::string>{R"(budget.nvme_paths=["/fast","/slow"])",
                                                 "zero_optimization.offload_optimizer.device=nvme",
                                                 "zero_optimization.offload_param.device=cpu"} +
                        more);
}

struct Rooms {
  double fast_gib = 0;
  double slow_gib = 0;
};

inline RunPlan plan_on(const config::Config& config, const Rooms& rooms) {
  MadeUpDrives drives;
  drives.folders["/fast"].free_bytes = static_cast<std::uint64_t>(rooms.fast_gib * kGiB);
  drives.folders["/slow"].free_bytes = static_cast<std::uint64_t>(rooms.slow_gib * kGiB);
  DescribedMachine machine = described(24);
  machine.nvme_gib.reset();
  return planned(config, {.machine = machine, .files = &drives});
}

}  // namespace sluice::engine
