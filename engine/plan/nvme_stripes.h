// NvmeStripes: how a planned run's stores are dealt over its NVMe paths, and the room that this
// leaves on them.
//
// Under placement.nvme_weights "auto" weights follow the measured speeds. Where the run then does
// not fit on some path, that path's weight is lowered: less speed is better than no run.
//
// Two paths that DeepSpeed's keys name, one for each store, are not striped: neither needs room for
// part of what is on the other.
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
  std::vector<std::string> paths;  // of all stores
  bool striped = false;            // each store over all of them: budget.nvme_paths has several
  std::vector<int> weights;        // of each; 1 where paths are not striped
  std::vector<std::uint64_t> room_bytes;  // on each, less a margin; empty: they are not here
  std::vector<int> weights_before;        // where they were changed for lack of room
  bool slower_together = false;           // than with those, by what was measured

  // Of all, only where they are on this machine. Where they are not striped, more may be free than
  // a store finds on its path.
  std::uint64_t room() const;
  // What PlanOptions::nvme_weights takes.
  std::vector<int> chosen() const { return striped ? weights : std::vector<int>(); }
};

// `files` reports what is free; null: the drives are not on this machine.
NvmeStripes nvme_stripes(const config::Config& config, const ProbeReport& machine,
                         aio::FileSystem* files,
                         const FileSystemOf& file_system_of = device_number_of);

// What has to be free on a drive for a plan to assume that much room.
std::uint64_t free_for_room(std::uint64_t room_bytes);

// Weights with which this many bytes fit; nothing where none do, or where they already fit.
std::optional<std::vector<int>> roomier_weights(const NvmeStripes& stripes,
                                                std::uint64_t needed_bytes);

// Whether the plan may choose them.
bool may_restripe(const config::Config& config, const NvmeStripes& stripes);
// Sets other weights, and in `machine` the rates of all paths together that follow from those that
// were measured: an estimate. Nothing follows for paths that were not measured.
void restripe(NvmeStripes& stripes, std::vector<int> weights, ProbeReport& machine);

// That weights were changed, and why: a sentence, or nothing.
std::string restriped_text(const NvmeStripes& stripes);

}  // namespace sluice::engine
