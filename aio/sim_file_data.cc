#include "aio/sim_file_data.h"

#include <algorithm>
#include <utility>

namespace sluice::aio {

void SimFileData::apply_part(const Change& write, PowerDice::Range part, State& state) {
  if (part.begin_bytes >= part.end_bytes) return;
  state.space.add(part.begin_bytes, part.end_bytes);
  if (write.data.empty()) return;
  state.pages.write(part.begin_bytes, std::span(write.data)
                                          .subspan(part.begin_bytes - write.begin_bytes,
                                                   part.end_bytes - part.begin_bytes));
}

void SimFileData::apply(const Change& change, State& state) {
  switch (change.kind) {
    case Kind::kWrite:
      apply_part(change, {change.begin_bytes, change.end_bytes}, state);
      break;
    case Kind::kGrow:
      state.size_bytes = std::max(state.size_bytes, change.end_bytes);
      break;
    case Kind::kSetSize:
      state.pages.erase_from(change.end_bytes);
      state.space.cut(change.end_bytes);
      state.size_bytes = change.end_bytes;
      break;
    case Kind::kAllocate:
      state.space.add(0, change.end_bytes);
      state.size_bytes = std::max(state.size_bytes, change.end_bytes);
      break;
  }
}

void SimFileData::change(Change change) {
  apply(change, present_);
  unsynced_bytes_ += change.data.size();
  pending_.push_back(std::move(change));
  while (unsynced_bytes_ > options_.write_cache_bytes) make_oldest_durable();
}

void SimFileData::make_oldest_durable() {
  apply(pending_.front(), durable_);
  unsynced_bytes_ -= pending_.front().data.size();
  pending_.pop_front();
}

void SimFileData::write(std::uint64_t sequence, const Write& write) {
  const std::uint64_t end = write.offset_bytes + write.length_bytes;
  const bool grows = end > present_.size_bytes;
  if (options_.keep_data) {
    change(
        {sequence, Kind::kWrite, write.offset_bytes, end, {write.data.begin(), write.data.end()}});
  } else {
    // These bytes cannot be read back, so only their space matters.
    present_.space.add(write.offset_bytes, end);
    durable_.space.add(write.offset_bytes, end);
  }
  if (grows) change({sequence, Kind::kGrow, 0, end, {}});
}

void SimFileData::set_size(std::uint64_t sequence, std::uint64_t size_bytes) {
  change({sequence, Kind::kSetSize, 0, size_bytes, {}});
}

void SimFileData::allocate(std::uint64_t sequence, std::uint64_t size_bytes) {
  change({sequence, Kind::kAllocate, 0, size_bytes, {}});
}

void SimFileData::sync(std::uint64_t up_to_sequence) {
  if (pending_.empty()) return;
  if (pending_.back().sequence <= up_to_sequence) {
    durable_ = present_;  // shares every page
    pending_.clear();
    unsynced_bytes_ = 0;
    return;
  }
  while (pending_.front().sequence <= up_to_sequence) make_oldest_durable();
}

void SimFileData::list_pending_metadata(std::vector<std::uint64_t>& into) const {
  for (const Change& change : pending_) {
    if (change.kind != Kind::kWrite) into.push_back(change.sequence);
  }
}

void SimFileData::lose_power(const PowerDice& dice) {
  State left = std::move(durable_);
  for (const Change& change : pending_) {
    if (change.kind == Kind::kWrite) {
      for (const PowerDice::Range part :
           dice.landing(change.sequence, {change.begin_bytes, change.end_bytes})) {
        apply_part(change, part, left);
      }
    } else if (dice.metadata_survives(change.sequence)) {
      apply(change, left);
    }
  }
  // Bytes that survived beyond the surviving size are not part of the file.
  left.pages.erase_from(left.size_bytes);
  left.space.cut(left.size_bytes);
  pending_.clear();
  unsynced_bytes_ = 0;
  present_ = left;
  durable_ = std::move(left);
}

}  // namespace sluice::aio
