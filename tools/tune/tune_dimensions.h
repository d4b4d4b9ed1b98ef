// The dimensions of a configuration that are worth a search, each with its choices.
//
// Varied by default: the split of the train batch, and keys that DeepSpeed's files always have
// because they must (sub_group_size, aio). Keys in the user's `placement` section are deliberate
// and stay fixed, unless --vary names them. Never varied: devices, budgets, whatever changes
// results, and keys without effect here, such as keys of the drives if nothing is stored on them.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/config/config.h"
#include "engine/config/resolve.h"
#include "tools/tune/search_space.h"

namespace sluice::tools {

// Facts from the plan of the user's configuration.
struct PlanFacts {
  bool cuda = false;
  bool state_on_nvme = false;
  bool params_on_nvme = false;
  double gpu_fraction = 0;  // share of the optimizer state
  double cpu_fraction = 0;
  double nvme_fraction = 0;
  std::int64_t largest_unit_elements = 0;
  std::int64_t units = 0;
  std::int64_t prefetch_units = 0;
  std::int64_t wave_micro_batches = 0;  // 0: unknown
  std::int64_t swap_buffers = 0;
  std::int64_t record_elements = 0;

  bool nvme() const { return state_on_nvme || params_on_nvme; }
};

struct VaryOptions {
  std::vector<std::string> vary;  // keys to vary though the configuration sets them; "all"
  std::vector<std::string> keep;  // keys to keep unchanged
};

struct TuneSpace {
  std::vector<Dimension> dimensions;
  std::vector<std::string> kept;  // keys that would be varied, but the configuration sets them
};

// kInvalidArgument if `options` names a key that cannot be varied.
Result<TuneSpace> tune_space(const config::Resolved& resolved, const PlanFacts& facts,
                             const VaryOptions& options);

// All keys that can be varied, for help texts.
std::vector<std::string> tunable_keys();

// Moves `share` of all state to the tier, or away from it if negative. The other tier is the next
// lower one that has or may have state: RAM, else the drives. nullopt if no state can move.
std::optional<config::TierFractions> shifted(const config::TierFractions& from, Shift shifts,
                                             double share, bool has_drives);

// In the form of placement.optimizer_fractions: shares that add up to 1.
KeyValue fractions_key(const config::TierFractions& fractions);

}  // namespace sluice::tools
