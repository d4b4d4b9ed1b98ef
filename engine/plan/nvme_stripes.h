// NvmeStripes: how a planned run's stores are dealt over its NVMe paths, and the room that this
// leaves on them.
//
// Under placement.nvme_weights "auto" weights follow the measured speeds. Where the run then does
// not fit on some path, that path's weight is lowered: less speed is better than no run.
//
// Two paths that DeepSpeed's keys name, one for each store, are not striped: neither needs room for
// a part of what is on the other.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aio/file_system.h"
#include "engine/config/config.h"
#include "engine/preflight/file_systems_of_paths.h"
#include "engine/probe/probe_report.h"

namespace sluice::engine {

struct NvmeStripes {
  std::vector<std::string> paths;  // of all stores
  bool striped = false;            // each store over all of them: budget.nvme_paths has several
  std::vector<int> weights;        // of each; 1 where paths are not striped
  std::vector<std::uint64_t> room_bytes;  // on each, less a margin; empty: they are not here
  std::vector<int> weights_before;        // where they are others for the room's sake
  bool slower_together = false;           // than with those, by what was measured

  // Of all, only where they are here. Where they are not striped more may be free than a store
  // finds on its path.
  std::uint64_t room() const;
  // What PlanOptions::nvme_weights takes.
  std::vector<int> chosen() const { return striped ? weights : std::vector<int>(); }
};

// `files` tells what is free; null: the drives are not here.
NvmeStripes nvme_stripes(const config::Config& config, const ProbeReport& machine,
                         aio::FileSystem* files,
                         const FileSystemOf& file_system_of = device_number_of);

// What has to be free on a drive so that a plan takes it to have that room.
std::uint64_t free_for_room(std::uint64_t room_bytes);

// Weights with which so many bytes fit; nothing where none do, or where they fit already.
std::optional<std::vector<int>> roomier_weights(const NvmeStripes& stripes,
                                                std::uint64_t needed_bytes);

// Whether the plan may choose them.
bool may_restripe(const config::Config& config, const NvmeStripes& stripes);
// Sets other weights, and in `machine` the rates of all paths together that follow from those that
// were measured: an estimate. Of paths that were not measured nothing follows.
void restripe(NvmeStripes& stripes, std::vector<int> weights, ProbeReport& machine);

// That weights are others, and why: a sentence, or nothing.
std::string restriped_text(const NvmeStripes& stripes);

}  // namespace sluice::engine
