#include "engine/plan/nvme_stripes.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/preflight/nvme_folders.h"
#include "swap/stripe_weights.h"

namespace sluice::engine {
namespace {

constexpr double kDriveMargin = 0.05;

// Paths of one file system share its free space equally.
std::vector<std::uint64_t> rooms_of(aio::FileSystem& files, const std::vector<std::string>& paths,
                                    const FileSystemOf& file_system_of) {
  std::vector<std::uint64_t> rooms(paths.size(), 0);
  for (const auto& system : file_systems_of_paths(files, paths, file_system_of)) {
    const auto free = files.free_bytes(system.folder);
    if (!free.ok()) continue;
    const double part = (1 - kDriveMargin) / static_cast<double>(system.paths.size());
    for (const std::size_t i : system.paths)
      rooms[i] = static_cast<std::uint64_t>(part * static_cast<double>(*free));
  }
  return rooms;
}

}  // namespace

std::uint64_t NvmeStripes::room() const {
  return striped ? swap::striped_room(room_bytes, weights)
                 : std::accumulate(room_bytes.begin(), room_bytes.end(), std::uint64_t{0});
}

NvmeStripes nvme_stripes(const config::Config& config, const ProbeReport& machine,
                         aio::FileSystem* files, const FileSystemOf& file_system_of) {
  NvmeStripes stripes{.paths = nvme_folders(config),
                      .striped = config.budget.nvme_paths.size() > 1};
  if (files != nullptr) stripes.room_bytes = rooms_of(*files, stripes.paths, file_system_of);
  stripes.weights.assign(stripes.paths.size(), 1);
  if (!stripes.striped) return stripes;
  const auto& named = config.placement.nvme_weights;
  if (named && !named->empty()) stripes.weights = *named;
  // Described drives have no individual speeds.
  if (!named && machine.paths.size() == stripes.paths.size()) {
    for (std::size_t i = 0; i < machine.paths.size(); ++i)
      stripes.weights[i] = machine.paths[i].weight;
  }
  return stripes;
}

std::uint64_t free_for_room(std::uint64_t room_bytes) {
  return static_cast<std::uint64_t>(static_cast<double>(room_bytes) / (1 - kDriveMargin));
}

std::optional<std::vector<int>> roomier_weights(const NvmeStripes& stripes,
                                                std::uint64_t needed_bytes) {
  if (!stripes.striped || stripes.room_bytes.empty() || stripes.room() >= needed_bytes)
    return std::nullopt;
  return swap::weights_within(stripes.room_bytes, stripes.weights, needed_bytes);
}

bool may_restripe(const config::Config& config, const NvmeStripes& stripes) {
  return stripes.striped && !config.placement.nvme_weights && !stripes.room_bytes.empty();
}

void restripe(NvmeStripes& stripes, std::vector<int> weights, ProbeReport& machine) {
  if (machine.paths.size() == weights.size()) {
    const offload::DuplexRates before = machine.speeds.drives;
    machine.speeds.drives =
        with_other_weights(before, path_speeds(machine), stripes.weights, weights);
    machine.drives_when.estimated = true;
    for (std::size_t i = 0; i < weights.size(); ++i) machine.paths[i].weight = weights[i];
    stripes.slower_together = swap_bytes_per_s(machine.speeds.drives) < swap_bytes_per_s(before);
  }
  if (stripes.weights_before.empty()) stripes.weights_before = stripes.weights;
  stripes.weights = std::move(weights);
}

std::string restriped_text(const NvmeStripes& stripes) {
  if (stripes.weights_before.empty()) return "";
  return "stripes are dealt " + swap::to_text(stripes.weights) +
         " over budget.nvme_paths instead of " + swap::to_text(stripes.weights_before) +
         ", because a path does not have room for more" +
         (stripes.slower_together ? "; the drives are slower together for it" : "");
}

}  // namespace sluice::engine
