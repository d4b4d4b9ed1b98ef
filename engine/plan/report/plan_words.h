// The wording of a plan, shared by its text and its JSON.
#pragma once

#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "aio/units.h"
#include "engine/observe/text_table.h"
#include "engine/plan/drive_wear.h"
#include "engine/plan/planner_input.h"
#include "engine/plan/run_plan.h"

namespace sluice::engine {

inline std::string milliseconds_text(double seconds) { return decimals(1e3 * seconds, 1) + " ms"; }
inline std::string percent_text(double share) { return decimals(100 * share, 0) + "%"; }

// Rounded up, so that the suggested amount suffices.
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
    case offload::Resource::kLink:
      return "link between ranks";
  }
  return "?";
}

inline const char* change_name(offload::WhatIf::Change change) {
  using Change = offload::WhatIf::Change;
  switch (change) {
    case Change::kMoreRam:
      return "16 GiB more RAM";
    case Change::kMoreGpu:
      return "8 GiB more GPU memory";
    case Change::kTwiceDrives:
      return "twice as many drives";
    case Change::kTwiceMicroBatch:
      return "twice the micro-batch";
    case Change::kOverlapUpdate:
      return "placement.overlap_update";
    case Change::kTwiceLink:
      return "links twice as fast";
    case Change::kTwiceAccumulation:
      return "twice the gradient accumulation";
    case Change::kBf16Moments:
      return "optimizer.params.moments bf16";
    case Change::kFp8:
      return "fp8.enabled";
  }
  return "?";
}

// "9.1", "122"
inline std::string tb_text(double tb) { return decimals(tb, tb < 9.95 ? 1 : 0); }

// "4.9 days", "122 days", "3.4 years"
inline std::string days_text(double days) {
  constexpr double kDaysOfAYear = 365.25;
  if (days >= 2 * kDaysOfAYear) return tb_text(days / kDaysOfAYear) + " years";
  return tb_text(days) + " days";
}

// "600 TB, assumed"
inline std::string rating_text(const RunPlan& plan) {
  return decimals(plan.drive_tbw, 0) + " TB" + (plan.drive_tbw_assumed ? ", assumed" : "");
}

// " for each of 16 ranks"; empty: there is one rank.
inline std::string of_each_rank_text(const RunPlan& plan) {
  return plan.ranks.world > 1 ? " for each of " + std::to_string(plan.ranks.world) + " ranks" : "";
}

struct NvmePathShare {
  std::string path;
  std::optional<double> share;  // in the stripes; nullopt: paths are not striped
  std::uint64_t bytes = 0;      // of all ranks of a host
  std::optional<std::uint64_t> room_bytes;
  offload::DuplexRates rates;  // alone; 0: not measured
};

// For each path of a store, in order.
inline std::vector<NvmePathShare> nvme_path_shares(const RunPlan& plan) {
  const NvmeStripes& stripes = plan.stripes;
  const double all = std::accumulate(stripes.weights.begin(), stripes.weights.end(), 0.0);
  std::vector<NvmePathShare> shares;
  for (std::size_t i = 0; i < stripes.paths.size(); ++i) {
    NvmePathShare share{.path = stripes.paths[i]};
    if (stripes.striped || stripes.paths.size() == 1) share.share = stripes.weights[i] / all;
    for (const PathBytes& it : plan.memory.nvme_paths())
      if (it.path == share.path) share.bytes = plan.ranks.of_host(it.bytes);
    if (!stripes.room_bytes.empty()) share.room_bytes = stripes.room_bytes[i];
    for (const ProbedPath& it : plan.machine.paths)
      if (it.path == share.path) share.rates = it.rates;
    shares.push_back(std::move(share));
  }
  return shares;
}

inline double tokens_per_s(const RunPlan& plan) {
  return static_cast<double>(plan.tokens_per_step) / plan.placement.prediction.step_s;
}

}  // namespace sluice::engine
