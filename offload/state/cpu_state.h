// CpuState: the optimizer state of the cpu tier, in one mapping: consecutive sub-groups, each
// stored in tiles.
//
// A unit's share of a step is spread over all of the executor's threads, however the unit was cut.
#pragma once

#include <memory>
#include <span>

#include "aio/executor.h"
#include "aio/page_memory.h"
#include "offload/state/tier_state.h"

namespace sluice::offload {

class CpuState final : public TierState {
 public:
  static Result<std::unique_ptr<CpuState>> create(const StateKind& kind,
                                                  std::span<const SubGroup> placement,
                                                  bool huge_pages, aio::Executor& executor);

  Status update(const UnitUpdate& update) override;
  Status restore(const SubGroup& sub_group, const UnitArrays& arrays, StateSweep& sweep) override;
  Status snapshot(const SubGroup& sub_group, const UnitArrays& arrays, StateSweep& sweep) override;
  Status amend(const SubGroup& sub_group, const UnitArrays& arrays, StateSweep& sweep) override;

 private:
  // A sub-group.
  struct Part {
    std::uint64_t first_element;  // in the unit's shard
    std::uint64_t elements;
    int group;
    std::uint64_t before;  // elements of the unit's parts before this one
    std::byte* state;
  };
  // A position in a unit's parts.
  struct Cut {
    std::size_t part;
    std::uint64_t element;  // index in the part
  };

  CpuState(const StateKind& kind, aio::Executor& executor, aio::PageMemory memory)
      : kind_(kind), executor_(executor), memory_(std::move(memory)) {}
  static Cut cut_at(std::span<const Part> parts, std::uint64_t element);
  StateTile tile_of(const Part& part, std::uint64_t first) const;
  void update_part(const Part& part, std::uint64_t begin, std::uint64_t end,
                   const UnitUpdate& update) const;

  const StateKind kind_;
  aio::Executor& executor_;
  aio::PageMemory memory_;
  UnitParts<Part> parts_;
};

}  // namespace sluice::offload
