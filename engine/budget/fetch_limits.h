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
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::engine {

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

}  // namespace sluice::engine
