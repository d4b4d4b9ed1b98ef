// ParamPlan: how a run's host stores the parameters: which units are on NVMe, the number of buffers
// they pass through, and how far ahead they are read. Settings that are too small are raised, with
// a note.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/budget/memory_ledger.h"
#include "engine/budget/run_spec.h"
#include "offload/params/param_offloader.h"
#include "offload/planner/step_model.h"

namespace sluice::engine {

// FetchLimits: how far ahead parameters are fetched and how many blocks the GPU holds, from
// DeepSpeed's ZeRO-3 keys. These keys count elements; here whole units are fetched and released:
//   stage3_prefetch_bucket_size  fetched ahead of their use, at most
//   stage3_max_live_parameters   on the GPU at once, at most
//   stage3_max_reuse_distance    what is used again within this many elements is not released
//
// The embedding and the head have their own slots on the GPU, from their first use in a step to
// their last. Blocks share slots. A slot keeps its block until another one needs it, so with n
// slots the last n blocks of forward are still there in backward.
//
// A limit below one unit's needs is raised; `raised` has a sentence for each. No limit changes a
// bit of the results.
struct UnitSizes {
  std::uint64_t end_elements = 0;    // the embedding and the head together
  std::uint64_t block_elements = 0;  // the largest block
  int blocks = 0;
};

struct FetchRequest {
  std::int64_t prefetch_units = 0;  // 0: given by the bucket; else it wins over both
  std::int64_t prefetch_bucket_elements = 0;
  std::int64_t max_live_elements = 0;
  std::int64_t max_reuse_distance_elements = 0;
};

struct FetchLimits {
  int prefetch_units = 1;
  int block_slots = 3;
  std::vector<std::string> raised;
};

// Limits of a run on the GPU.
FetchLimits fetch_limits(const UnitSizes& sizes, const FetchRequest& request);
// Limits of a run on the CPU, which computes on the host's copy of the parameters. Nothing is
// copied, so only reads ahead from NVMe are limited, by the bucket.
FetchLimits host_fetch_limits(const UnitSizes& sizes, const FetchRequest& request);

// The fewest slots that still let one block be copied while another computes.
int least_block_slots(int blocks);
// Lowers the slots to `most`, but not below the minimum; prefetching is adjusted to them.
void lower_block_slots(FetchLimits& limits, int blocks, int most);

// FetchPlan: how far ahead parameters are fetched, and how many slots the GPU has for the blocks
// that pass through it. Limited by the configuration (FetchLimits) and by the available memory.
struct FetchPlan {
  int prefetch_units = 1;          // units fetched ahead of their use
  int block_slots = 3;             // for the parameters of blocks on the GPU
  std::vector<std::string> notes;  // where the plan differs from the configuration
};

struct FetchBudget {
  // Slots that exist only for reuse are given up if the placement leaves less GPU memory than this.
  std::optional<std::uint64_t> gpu_bytes;
  int slots = 0;  // upper bound that the planner counted with; 0: none yet
};

// `ledger` has the same spec; its slots are ignored.
FetchPlan plan_fetching(const RunSpec& spec, const MemoryLedger& ledger,
                        std::span<const offload::UnitPlacement> places, const FetchBudget& room);

struct ParamPlan {
  offload::ParamOffloader::Options options;
  std::vector<std::string> notes;

  bool uses_nvme() const;
};

// `places`: the resolved placement per unit. `prefetch_units`: units fetched ahead of their use.
// `nvme_weights`: from stripe_weights().
ParamPlan plan_params(const RunSpec& spec, std::span<const offload::UnitPlacement> places,
                      int prefetch_units, std::vector<int> nvme_weights);

// The plan for the base of a model that has_frozen(): its parameters in the host's form, for units
// that are not resident. In such a model plan_params() covers only the trained adapters, which are
// small and stay in RAM.
ParamPlan plan_base_params(const RunSpec& spec, std::span<const offload::UnitPlacement> places,
                           int prefetch_units, std::vector<int> nvme_weights);

// The host's tier of a unit's trained parameters. kGpu: none, because the GPU updates all of the
// unit.
offload::Tier param_tier(bool has_frozen, const offload::UnitPlacement& place);
// The host's tier of a unit's frozen parameters. kGpu: none, because the unit is resident.
offload::Tier base_tier(const offload::UnitPlacement& place);

// Buffers of each size class, for NVMe units with at most `largest_elements`. Buffers are as large
// as the units that they hold; memory beyond that, by a larger buffer_size, would be unused.
int param_cache_buffers(const config::OffloadParam& asked, std::uint64_t largest_elements);

}  // namespace sluice::engine
