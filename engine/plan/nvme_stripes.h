// NvmeStripes: how a planned run's stores are dealt over its NVMe paths, and the room that this
// leaves on them.
//
// Under placement.nvme_weights "auto" weights follow the measured speeds. Where the run then does
// not fit on some path, that path's weight is lowered: less speed is better than no run.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aio/file_system.h"
#include "engine/config/config.h"
#include "engine/probe/probe_report.h"
#include "engine/train/file_systems_of_paths.h"

namespace sluice::engine {

struct NvmeStripes {
  std::vector<std::string> paths;         // of all stores
  std::vector<int> weights;               // of each; 1 where paths are not striped
  std::vector<std::uint64_t> room_bytes;  // on each, less a margin; empty: they are not here
  std::vector<int> by_speed;              // where weights were lowered: those before

  std::uint64_t room() const;  // of all; only where they are here
  // What PlanOptions::nvme_weights takes.
  std::vector<int> chosen() const { return paths.size() < 2 ? std::vector<int>() : weights; }
};

// `files` tells what is free; null: the drives are not here.
NvmeStripes nvme_stripes(const config::Config& config, const ProbeReport& machine,
                         aio::FileSystem* files,
                         const FileSystemOf& file_system_of = device_number_of);

// Weights with which so many bytes fit; nothing where none do, or where they fit already.
std::optional<std::vector<int>> roomier_weights(const NvmeStripes& stripes,
                                                std::uint64_t needed_bytes);

// Whether the plan may choose them.
bool may_lower_weights(const config::Config& config, const NvmeStripes& stripes);
// Sets other weights, and in `machine` the rates of all paths together that follow from those that
// were measured: an estimate.
void lower_weights(NvmeStripes& stripes, std::vector<int> weights, ProbeReport& machine);

// That weights were lowered: a sentence, or nothing.
std::string lowered_text(const NvmeStripes& stripes);

}  // namespace sluice::engine
