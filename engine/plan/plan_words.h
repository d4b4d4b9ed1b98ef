// The words of a plan, for its text and its JSON alike.
#pragma once

#include <cmath>
#include <string>

#include "aio/units.h"
#include "engine/observe/text_table.h"
#include "engine/plan/run_plan.h"

namespace sluice::engine {

inline constexpr double kSecondsOfADay = 86400;

inline std::string milliseconds_text(double seconds) { return decimals(1e3 * seconds, 1) + " ms"; }
inline std::string percent_text(double share) { return decimals(100 * share, 0) + "%"; }

// Up, so that what is asked for is enough.
inline std::string gib_up_text(std::uint64_t bytes) {
  return decimals(std::ceil(static_cast<double>(bytes) / kGiB * 10) / 10, 1);
}

inline const char* resource_name(offload::Resource resource) {
  switch (resource) {
    case offload::Resource::kGpu:
      return "compute";
    case offload::Resource::kHostToGpu:
      return "host to GPU";
    case offload::Resource::kGpuToHost:
      return "GPU to host";
    case offload::Resource::kCpu:
      return "AdamW on the CPU";
    case offload::Resource::kDriveRead:
      return "NVMe read";
    case offload::Resource::kDriveWrite:
      return "NVMe write";
  }
  return "?";
}

inline const char* change_name(offload::Relief::Change change) {
  using Change = offload::Relief::Change;
  switch (change) {
    case Change::kMoreRam:
      return "16 GiB more RAM";
    case Change::kMoreGpu:
      return "8 GiB more GPU memory";
    case Change::kTwiceDrives:
      return "as many drives again";
    case Change::kTwiceMicroBatch:
      return "twice the micro-batch";
    case Change::kOverlapUpdate:
      return "placement.overlap_update";
  }
  return "?";
}

inline double tokens_per_s(const RunPlan& plan) {
  return static_cast<double>(plan.tokens_per_step) / plan.placement.prediction.step_s;
}

}  // namespace sluice::engine
