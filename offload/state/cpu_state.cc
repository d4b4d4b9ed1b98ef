#include "offload/state/cpu_state.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "aio/check.h"
#include "aio/units.h"
#include "offload/adamw/adamw.h"
#include "offload/state/state_footprint.h"

namespace sluice::offload {
namespace {

// Threads begin at multiples of this within a sub-group: whole pages of fp32 arrays.
constexpr std::uint64_t kCutElements = 1024;
// With fewer elements, one thread finishes sooner than several could share the work.
constexpr std::uint64_t kElementsWorthThreads = 32 * 1024;

}  // namespace

Result<std::unique_ptr<CpuState>> CpuState::create(const StateKind& kind,
                                                   std::span<const SubGroup> placement,
                                                   bool huge_pages, aio::Executor& executor) {
  const std::uint64_t bytes = StateFootprint::of({.form = kind.form}, placement).cpu_bytes();
  auto memory = aio::PageMemory::map(bytes, huge_pages, &executor);
  if (!memory.ok()) {
    return Error(memory.error().code(), "could not get " + format_bytes(bytes) +
                                            " of memory for the optimizer state in host memory: "
                                            "place less of it there, or free memory");
  }
  std::unique_ptr<CpuState> cpu(new CpuState(kind, executor, std::move(*memory)));
  std::byte* state = cpu->memory_.data();
  std::uint64_t before = 0;
  int unit = -1;
  for (const SubGroup& sub_group : placement) {
    if (sub_group.tier != Tier::kCpu) continue;
    if (std::exchange(unit, sub_group.unit) != sub_group.unit) before = 0;
    cpu->parts_.add(sub_group.unit, {.first_element = sub_group.first_element,
                                     .elements = sub_group.elements,
                                     .group = sub_group.group,
                                     .before = before,
                                     .state = state});
    before += sub_group.elements;
    state += state_bytes(kind.form, sub_group.elements);
  }
  return cpu;
}

// The last cut at or before the unit's element number `element` in this tier.
CpuState::Cut CpuState::cut_at(std::span<const Part> parts, std::uint64_t element) {
  const auto after =
      std::upper_bound(parts.begin(), parts.end(), element,
                       [](std::uint64_t wanted, const Part& part) { return wanted < part.before; });
  const Part& part = *std::prev(after);
  const std::uint64_t inside = element - part.before;
  const bool at_end = inside >= part.elements;
  return {.part = static_cast<std::size_t>(after - parts.begin()) - 1,
          .element = at_end ? part.elements : align_down(inside, kCutElements)};
}

Status CpuState::update(const UnitUpdate& update) {
  const std::span<const Part> parts = parts_.of(update.unit);
  if (parts.empty()) return {};
  const std::uint64_t elements = parts.back().before + parts.back().elements;
  const int pieces = elements < kElementsWorthThreads ? 1 : executor_.threads();
  const auto share = [&](int piece) {
    return elements / static_cast<std::uint64_t>(pieces) * static_cast<std::uint64_t>(piece) +
           std::min(elements % static_cast<std::uint64_t>(pieces),
                    static_cast<std::uint64_t>(piece));
  };
  const auto work = [&](int piece) {
    const Cut begin = cut_at(parts, share(piece));
    const Cut end = cut_at(parts, share(piece + 1));
    for (std::size_t i = begin.part; i <= end.part; ++i) {
      update_part(parts[i], i == begin.part ? begin.element : 0,
                  i == end.part ? end.element : parts[i].elements, update);
    }
  };
  if (pieces == 1) {
    work(0);
  } else {
    executor_.run(pieces, std::cref(work));  // by reference, so that nothing is allocated
  }
  return {};
}

StateTile CpuState::tile_of(const Part& part, std::uint64_t first) const {
  std::byte* const tile = part.state + first / kTileElements * tile_bytes(kind_.form);
  return state_tile(kind_.form, tile, std::min(kTileElements, part.elements - first));
}

void CpuState::update_part(const Part& part, std::uint64_t begin, std::uint64_t end,
                           const UnitUpdate& update) const {
  for (std::uint64_t i = begin; i < end;) {
    const std::uint64_t first = align_down(i, kTileElements);
    const std::uint64_t stop = std::min(end, first + kTileElements);
    const std::uint64_t in_shard = part.first_element + first;
    const AdamwArrays arrays =
        step_arrays(tile_arrays(kind_.form, tile_of(part, first),
                                param_at(kind_.form.param, update.arrays.param, in_shard)),
                    kind_, update, update.arrays.grad, in_shard);
    while (i < stop) {
      const auto piece =
          update.piece(part.group, part.first_element + i, part.first_element + stop);
      const std::uint64_t piece_end = piece.end - part.first_element;
      adamw_range(kind_.isa, piece.scalars, arrays, i - first, piece_end - first);
      i = piece_end;
    }
  }
}

Status CpuState::restore(const SubGroup& sub_group, const UnitArrays& arrays, StateSweep& sweep) {
  const std::span<const Part> parts = parts_.of(sub_group);
  SLUICE_CHECK(parts.size() == 1, "a sub-group of this tier");
  const Part& part = parts.front();
  return sweep.run({.unit = sub_group.unit,
                    .count = tile_count(part.elements),
                    .at = [&](std::uint64_t index) -> StateSweep::Tile {
                      const std::uint64_t first = index * kTileElements;
                      const std::uint64_t in_shard = part.first_element + first;
                      void* const param = param_at(kind_.form.param, arrays.param, in_shard);
                      return {in_shard, std::min(kTileElements, part.elements - first),
                              tile_arrays(kind_.form, tile_of(part, first), param)};
                    }});
}

// The sweep reads or sets the state in place.
Status CpuState::snapshot(const SubGroup& sub_group, const UnitArrays& arrays, StateSweep& sweep) {
  return restore(sub_group, arrays, sweep);
}

Status CpuState::amend(const SubGroup& sub_group, const UnitArrays& arrays, StateSweep& sweep) {
  return restore(sub_group, arrays, sweep);
}

}  // namespace sluice::offload
