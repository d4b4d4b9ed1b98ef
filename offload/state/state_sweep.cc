#include "offload/state/state_sweep.h"

#include <algorithm>
#include <span>
#include <utility>

namespace sluice::offload {

StateSweep::StateSweep(aio::Executor& executor, const Visit& visit, Direction direction,
                       Calls calls, std::span<const UnitSpec> units, const MomentSeed& rounding)
    : executor_(executor),
      visit_(visit),
      direction_(direction),
      calls_(calls),
      units_(units),
      rounding_(rounding),
      threads_(std::min(executor.threads(), kMaxThreads)) {}

Status StateSweep::run(const Tiles& tiles) {
  if (failed_) return first_error_;
  const auto workers = std::min<std::uint64_t>(tiles.count, static_cast<std::uint64_t>(threads_));
  while (canonical_.size() < workers) canonical_.emplace_back(kStateFields.size() * kTileElements);
  next_ = 0;
  turn_ = 0;
  // Each thread takes the next tile, so it does not matter which threads work, or when.
  const auto share = [&](int worker) { work(tiles, canonical_[static_cast<std::size_t>(worker)]); };
  if (workers == 1) {
    share(0);
  } else {
    executor_.run(static_cast<int>(workers), std::cref(share));
  }
  return first_error_;
}

void StateSweep::work(const Tiles& tiles, CanonicalTile& canonical) noexcept {
  for (std::uint64_t index = next_++; index < tiles.count && !failed_; index = next_++) {
    const Tile tile = tiles.at(index);
    const std::uint64_t in_unit =
        units_[static_cast<std::size_t>(tiles.unit)].first_element + tile.first_element;
    const StateSlice slice = state_slice_in(canonical, in_unit, tile.elements, kTileElements);
    if (direction_ != Direction::kRestore) {
      unpack_state(tile.arrays, slice);
    } else {
      for (const std::span<float> field : slice.fields) std::ranges::fill(field, 0.0F);
    }
    if (!show(index, tiles.unit, slice).ok()) return;
    if (direction_ == Direction::kSnapshot) continue;
    AdamwArrays arrays = tile.arrays;
    arrays.moment_keys = moment_keys(rounding_, tiles.unit);
    arrays.first_element = in_unit;
    pack_state(slice, arrays);
  }
}

Status StateSweep::show(std::uint64_t index, int unit, const StateSlice& slice) {
  if (calls_ == Calls::kAnyOrder) {
    Status visited = visit_(unit, slice);
    if (!visited.ok()) fail(visited);
    return visited;
  }
  if (!await_turn(index)) return Error(ErrorCode::kCancelled, "a tile before it failed");
  Status visited = visit_(unit, slice);
  if (!visited.ok()) {
    fail(visited);
    return visited;
  }
  {
    const std::lock_guard lock(mutex_);
    ++turn_;
  }
  changed_.notify_all();
  return {};
}

// Another thread works on the previous tile, and passes the turn on or fails. False: one failed.
bool StateSweep::await_turn(std::uint64_t index) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return turn_ == index || failed_; });
  return !failed_;
}

void StateSweep::fail(Status status) {
  {
    const std::lock_guard lock(mutex_);
    if (first_error_.ok()) first_error_ = std::move(status);
    failed_ = true;
  }
  changed_.notify_all();
}

}  // namespace sluice::offload
