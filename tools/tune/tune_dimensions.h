// The dimensions of a configuration that are worth a search: what may be varied, and around what.
//
// Varied unless it is kept: the split of the train batch, and what DeepSpeed's files always say
// because they must (sub_group_size, aio). What a user says in the `placement` section is
// deliberate and stays, unless it is named. Devices, budgets and whatever changes results are never
// varied; nor is what has no effect here: keys of the drives where nothing is on them, and so on.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/config/resolve.h"
#include "tools/tune/search_space.h"

namespace sluice::tools {

// What the plan made of the user's configuration.
struct PlanFacts {
  bool cuda = false;
  bool state_on_nvme = false;
  bool params_on_nvme = false;
  double gpu_fraction = 0;  // of optimizer state
  double cpu_fraction = 0;
  double nvme_fraction = 0;
  std::int64_t largest_unit_elements = 0;
  std::int64_t units = 0;
  std::int64_t prefetch_units = 0;
  std::int64_t wave_micro_batches = 0;  // 0: not told
  std::int64_t swap_buffers = 0;
  std::int64_t record_elements = 0;

  bool nvme() const { return state_on_nvme || params_on_nvme; }
};

struct VaryOptions {
  std::vector<std::string> vary;  // keys, though the configuration gives them; "all"
  std::vector<std::string> keep;  // keys that stay as they are
};

struct TuneSpace {
  std::vector<Dimension> dimensions;
  std::vector<std::string> kept;  // keys that would be varied, but the configuration gives them
};

// kInvalidArgument: a key in `options` that is not one of those that can be varied.
Result<TuneSpace> tune_space(const config::Resolved& resolved, const PlanFacts& facts,
                             const VaryOptions& options);

// For help: every key that can be varied.
std::vector<std::string> tunable_keys();

}  // namespace sluice::tools
