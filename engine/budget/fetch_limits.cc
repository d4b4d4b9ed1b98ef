#include "engine/budget/fetch_limits.h"

#include <algorithm>

#include "aio/check.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kMostPrefetchUnits = 64;
// Slots in addition to those being copied into, because the host runs ahead of the GPU: one in use,
// and one just used.
constexpr int kSlotsBeside = 2;

std::uint64_t not_negative(std::int64_t elements) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(elements, 0));
}

std::string below(const std::string& key, std::int64_t given, const std::string& who,
                  std::uint64_t needed) {
  return "zero_optimization." + key + " " + std::to_string(given) + " is below what " + who + " (" +
         std::to_string(needed) + " elements): raised to that";
}

int at_most(std::uint64_t count, int most) {
  return static_cast<int>(std::min<std::uint64_t>(count, static_cast<std::uint64_t>(most)));
}

int units_ahead(const UnitSizes& sizes, const FetchRequest& request,
                std::vector<std::string>& raised) {
  if (request.prefetch_units > 0)
    return static_cast<int>(std::min(request.prefetch_units, kMostPrefetchUnits));
  const std::uint64_t bucket = not_negative(request.prefetch_bucket_elements);
  if (bucket < sizes.block_elements) {
    raised.push_back(below("stage3_prefetch_bucket_size", request.prefetch_bucket_elements,
                           "one block needs", sizes.block_elements));
    return 1;
  }
  const int most = static_cast<int>(std::min<std::int64_t>(sizes.blocks, kMostPrefetchUnits));
  return at_most(bucket / sizes.block_elements, most);
}

// Slots that max_live_elements allows for blocks.
int live_blocks(const UnitSizes& sizes, const FetchRequest& request,
                std::vector<std::string>& raised) {
  const int least = least_block_slots(sizes.blocks);
  const std::uint64_t kept = sizes.end_elements;
  const std::uint64_t needed = kept + static_cast<std::uint64_t>(least) * sizes.block_elements;
  const std::uint64_t live = not_negative(request.max_live_elements);
  if (live < needed) {
    raised.push_back(below("stage3_max_live_parameters", request.max_live_elements,
                           "the embedding, the head, one block and its successor need", needed));
    return least;
  }
  return at_most((live - kept) / sizes.block_elements, sizes.blocks);
}

// Between a block's forward and backward come all later blocks, twice, and the head with the token
// embedding.
int reused_blocks(const UnitSizes& sizes, const FetchRequest& request) {
  const std::uint64_t distance = not_negative(request.max_reuse_distance_elements);
  const std::uint64_t of_last = sizes.end_elements;
  if (distance < of_last) return 0;
  return at_most((distance - of_last) / sizes.block_elements / 2 + 1, sizes.blocks);
}

void check_sizes(const UnitSizes& sizes) {
  SLUICE_CHECK(sizes.blocks > 0 && sizes.block_elements > 0, "a model has blocks with parameters");
}

}  // namespace

int least_block_slots(int blocks) { return std::min(blocks, 2); }

void lower_block_slots(FetchLimits& limits, int blocks, int most) {
  limits.block_slots =
      std::max(least_block_slots(blocks), std::min({limits.block_slots, blocks, most}));
  limits.prefetch_units = std::clamp(limits.prefetch_units, 1, std::max(limits.block_slots - 1, 1));
}

FetchLimits fetch_limits(const UnitSizes& sizes, const FetchRequest& request) {
  check_sizes(sizes);
  FetchLimits limits;
  limits.prefetch_units = units_ahead(sizes, request, limits.raised);
  const int for_fetching = limits.prefetch_units + kSlotsBeside;
  const int live = live_blocks(sizes, request, limits.raised);
  const bool is_explicit = request.prefetch_units > 0;
  limits.block_slots = std::max(for_fetching, reused_blocks(sizes, request));
  lower_block_slots(limits, sizes.blocks, is_explicit ? std::max(live, for_fetching) : live);
  return limits;
}

FetchLimits host_fetch_limits(const UnitSizes& sizes, const FetchRequest& request) {
  check_sizes(sizes);
  FetchLimits limits;
  limits.prefetch_units = units_ahead(sizes, request, limits.raised);
  return limits;
}

}  // namespace sluice::engine
