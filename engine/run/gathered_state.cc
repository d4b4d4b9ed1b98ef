#include "engine/run/gathered_state.h"

#include <algorithm>
#include <utility>

#include "engine/budget/state_plan.h"

namespace sluice::engine {

using offload::StateRange;
using offload::UnitShard;

GatheredState::GatheredState(const ModelLayout& model, const RankLink& ranks, const Visit& visit)
    : model_(model), ranks_(ranks), visit_(visit), message_(kFields * kGatheredElements) {
  begin_unit();
}

void GatheredState::begin_unit() { mine_.assign(kFields * shard(ranks_.part.rank).elements, 0); }

Status GatheredState::add(const StateRange& range) {
  while (unit_ < range.unit) SLUICE_RETURN_IF_ERROR(gather_unit());
  const UnitShard own = shard(ranks_.part.rank);
  const std::span<const float> fields[kFields] = {range.master, range.m, range.v};
  for (std::size_t field = 0; field < kFields; ++field) {
    const std::uint64_t at = field * own.elements + range.first_element - own.first_element;
    std::copy(fields[field].begin(), fields[field].end(),
              mine_.begin() + static_cast<std::ptrdiff_t>(at));
  }
  return {};
}

Status GatheredState::finish() {
  while (unit_ < model_.units()) SLUICE_RETURN_IF_ERROR(gather_unit());
  return {};
}

// Part by part. Only rank 0 has a use for it; that the others get it too is the price of a
// collective.
Status GatheredState::send_shard(int rank) {
  const UnitShard sent = shard(rank);
  const bool is_mine = rank == ranks_.part.rank;
  for (std::uint64_t done = 0; done < sent.elements;) {
    const std::uint64_t count = std::min(kGatheredElements, sent.elements - done);
    const std::span<float> message = std::span(message_).first(kFields * count);
    for (std::size_t field = 0; is_mine && field < kFields; ++field)
      std::copy_n(mine_.begin() + static_cast<std::ptrdiff_t>(field * sent.elements + done), count,
                  message.begin() + static_cast<std::ptrdiff_t>(field * count));
    if (rank > 0)
      SLUICE_RETURN_IF_ERROR(ranks_.link->broadcast(std::as_writable_bytes(message), rank));
    if (ranks_.part.rank == 0 && visited_.ok()) {
      visited_ = visit_({.unit = unit_,
                         .first_element = sent.first_element + done,
                         .master = message.first(count),
                         .m = message.subspan(count, count),
                         .v = message.subspan(2 * count, count)});
    }
    done += count;
  }
  return {};
}

Status GatheredState::gather_unit() {
  for (int rank = 0; rank < ranks_.part.world; ++rank) SLUICE_RETURN_IF_ERROR(send_shard(rank));
  if (++unit_ < model_.units()) begin_unit();
  std::vector<int> failed(static_cast<std::size_t>(ranks_.part.world));
  SLUICE_RETURN_IF_ERROR(ranks_.link->all_gather_values(visited_.ok() ? 0 : 1, std::span(failed)));
  SLUICE_RETURN_IF_ERROR(visited_);
  if (failed.front() != 0)
    return Error(ErrorCode::kCancelled, "rank 0 could not take the state of all ranks");
  return {};
}

}  // namespace sluice::engine
