// NvmeStripes: how a planned run's stores are distributed over its NVMe paths, and the available
// space on each.
//
// Under placement.nvme_weights "auto" the weights follow the measured speeds. If the run then does
// not fit on some path, that path's weight is lowered: a slower run is better than none.
//
// The two paths of DeepSpeed's keys, one for each store, are not striped, so neither path needs
// room for the other's store.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aio/file_system.h"
#include "engine/config/config.h"
#include "engine/preflight/shared_file_systems.h"
#include "engine/probe/probe_report.h"

namespace sluice::engine {

struct NvmeStripes {
  std::vector<std::string> paths;         // of all stores
  bool striped = false;                   // each store is on all of several budget.nvme_paths
  std::vector<int> weights;               // by path; 1 if paths are not striped
  std::vector<std::uint64_t> room_bytes;  // by path, less a margin; empty: not on this machine
  std::vector<int> weights_before;        // set if they were changed for lack of room
  bool slower_together = false;           // measured: slower than with weights_before

  // The room on all paths; only if they are on this machine. If they are not striped, a store may
  // find less on its own path.
  std::uint64_t room() const;
  // The value for PlanOptions::nvme_weights.
  std::vector<int> chosen() const { return striped ? weights : std::vector<int>(); }
};

// `files` reports the free space; null: the drives are not on this machine.
NvmeStripes nvme_stripes(const config::Config& config, const ProbeReport& machine,
                         aio::FileSystem* files,
                         const FileSystemOf& file_system_of = device_number_of);

// The free space that a drive needs so that a plan assumes this much room.
std::uint64_t free_for_room(std::uint64_t room_bytes);

// Weights with which this many bytes fit; nullopt if none do, or if the bytes already fit.
std::optional<std::vector<int>> roomier_weights(const NvmeStripes& stripes,
                                                std::uint64_t needed_bytes);

// Whether the plan may choose the weights.
bool may_restripe(const config::Config& config, const NvmeStripes& stripes);
// Sets other weights, and in `machine` the resulting rates of all paths together, estimated from
// the measured rates. Without measured paths the rates stay.
void restripe(NvmeStripes& stripes, std::vector<int> weights, ProbeReport& machine);

// A sentence that says that weights were changed, and why; or empty.
std::string restriped_text(const NvmeStripes& stripes);

}  // namespace sluice::engine
