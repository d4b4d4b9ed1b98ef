#include "engine/run/gathered_state.h"

#include <algorithm>
#include <utility>

#include "aio/check.h"
#include "engine/budget/state_plan.h"
#include "engine/step/unit_binding.h"

namespace sluice::engine {

using offload::kStateFields;
using offload::StateSlice;

GatheredState::GatheredState(const ModelLayout& model, const RankLink& ranks, const Visit& visit)
    : model_(model),
      ranks_(ranks),
      visit_(visit),
      message_(kStateFields.size() * kGatheredElements) {}

std::uint64_t GatheredState::message_elements() const {
  return std::min(kGatheredElements, shard(turn_).elements - sent_);
}

Status GatheredState::add(int unit, const StateSlice& slice) {
  while (unit_ < unit || !is_my_turn()) SLUICE_RETURN_IF_ERROR(next_turn());
  SLUICE_CHECK(unit == unit_ && slice.first_element == shard(turn_).first_element + sent_ + filled_,
               "state in ascending order");
  for (std::uint64_t done = 0; done < slice.elements();) {
    const std::uint64_t all = message_elements();
    const std::uint64_t count = std::min(all - filled_, slice.elements() - done);
    for (std::size_t field = 0; field < kStateFields.size(); ++field)
      std::copy_n(slice.fields[field].begin() + static_cast<std::ptrdiff_t>(done), count,
                  message_.begin() + static_cast<std::ptrdiff_t>(field * all + filled_));
    done += count;
    filled_ += count;
    if (filled_ == all) SLUICE_RETURN_IF_ERROR(send_message());
  }
  return {};
}

Status GatheredState::finish() {
  while (unit_ < model_.units()) SLUICE_RETURN_IF_ERROR(next_turn());
  return {};
}

// Only rank 0 uses the message. The other ranks receive it too because a broadcast is a collective.
Status GatheredState::send_message() {
  const std::uint64_t count = message_elements();
  const std::span<float> message = std::span(message_).first(kStateFields.size() * count);
  if (turn_ > 0)
    SLUICE_RETURN_IF_ERROR(ranks_.link->broadcast(std::as_writable_bytes(message), turn_));
  if (ranks_.part.rank == 0 && visited_.ok()) {
    const std::uint64_t first = shard(turn_).first_element + sent_;
    visited_ = visit_(unit_, offload::state_slice_in(message, first, count, count));
  }
  sent_ += count;
  filled_ = 0;
  return {};
}

Status GatheredState::next_turn() {
  while (!is_my_turn() && message_elements() > 0) SLUICE_RETURN_IF_ERROR(send_message());
  SLUICE_CHECK(message_elements() == 0, "all of a shard's state");
  sent_ = 0;
  if (++turn_ < ranks_.part.world) return {};
  turn_ = 0;
  return end_unit();
}

Status GatheredState::end_unit() {
  ++unit_;
  std::vector<int> failed(static_cast<std::size_t>(ranks_.part.world));
  SLUICE_RETURN_IF_ERROR(ranks_.link->all_gather_values(visited_.ok() ? 0 : 1, std::span(failed)));
  SLUICE_RETURN_IF_ERROR(visited_);
  if (failed.front() != 0)
    return Error(ErrorCode::kCancelled, "rank 0 could not take the state of all ranks");
  return {};
}

Status take_gathered_state(const RunState& own, const RankLink& ranks, const TakeState& take,
                           offload::Calls calls) {
  if (ranks.part.world == 1) return own.take(take, calls);
  const GatheredState::Visit visit = [&](int unit, const StateSlice& slice) {
    return take_parameters(own.model->layout(unit), slice, take);
  };
  GatheredState gathered(*own.model, ranks, visit);
  UnitBinding units({own.params, own.units}, UnitBinding::Access::kRead, *own.model);
  Status taken = own.optimizer->snapshot(
      units, [&](int unit, const StateSlice& slice) { return gathered.add(unit, slice); });
  return taken.ok() ? gathered.finish() : taken;
}

}  // namespace sluice::engine
