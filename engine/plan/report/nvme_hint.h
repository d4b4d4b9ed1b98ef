// What would give a run more room on NVMe, as text: which setting, and which path.
#pragma once

#include <cstdint>
#include <string>

#include "engine/config/config.h"
#include "engine/plan/run_plan.h"

namespace sluice::engine {

// For a plan that does not fit, and would with this many more bytes on its NVMe paths: how the
// sentence "it would with ..." continues. budget.nvme_gib is named only where it is what limits the
// room: otherwise setting it would hide that drives are full until the run begins. Where no path is
// named, that is what is missing.
std::string more_nvme_text(const config::Config& config, const RunPlan& plan,
                           std::uint64_t more_bytes);

}  // namespace sluice::engine
