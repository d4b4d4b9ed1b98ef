#include "aio/sim_file_data.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "aio/units.h"

namespace sluice::aio {
namespace {

bool all_zero(std::span<const std::byte> data) {
  // The first byte is zero and every byte equals its neighbour.
  return data.empty() || (data[0] == std::byte{0} &&
                          std::memcmp(data.data(), data.data() + 1, data.size() - 1) == 0);
}

}  // namespace

SparsePages::Page& SparsePages::writable_page(std::uint64_t number) {
  std::shared_ptr<Page>& page = pages_[number];
  if (page == nullptr) {
    page = std::make_shared<Page>();  // zeroed
  } else if (page.use_count() > 1) {
    page = std::make_shared<Page>(*page);
  }
  return *page;
}

void SparsePages::write(std::uint64_t offset_bytes, std::span<const std::byte> data) {
  while (!data.empty()) {
    const std::uint64_t number = offset_bytes / kPageBytes;
    const std::uint64_t skip = offset_bytes % kPageBytes;
    const auto piece = data.first(std::min<std::uint64_t>(data.size(), kPageBytes - skip));
    if (pages_.contains(number) || !all_zero(piece)) {
      std::memcpy(writable_page(number).data() + skip, piece.data(), piece.size());
    }
    offset_bytes += piece.size();
    data = data.subspan(piece.size());
  }
}

void SparsePages::read(std::uint64_t offset_bytes, std::span<std::byte> out) const {
  while (!out.empty()) {
    const std::uint64_t skip = offset_bytes % kPageBytes;
    const auto piece = out.first(std::min<std::uint64_t>(out.size(), kPageBytes - skip));
    const auto page = pages_.find(offset_bytes / kPageBytes);
    if (page == pages_.end()) {
      std::memset(piece.data(), 0, piece.size());
    } else {
      std::memcpy(piece.data(), page->second->data() + skip, piece.size());
    }
    offset_bytes += piece.size();
    out = out.subspan(piece.size());
  }
}

void SparsePages::erase_from(std::uint64_t offset_bytes) {
  const std::uint64_t number = offset_bytes / kPageBytes;
  const std::uint64_t skip = offset_bytes % kPageBytes;
  if (skip != 0 && pages_.contains(number)) {
    Page& page = writable_page(number);
    std::fill(page.begin() + static_cast<std::ptrdiff_t>(skip), page.end(), std::byte{0});
  }
  pages_.erase(pages_.lower_bound(skip == 0 ? number : number + 1), pages_.end());
}

std::uint64_t ExtentSet::missing_bytes(std::uint64_t begin_bytes, std::uint64_t end_bytes) const {
  const std::uint64_t begin = align_down(begin_bytes, kBlockBytes);
  const std::uint64_t end = align_up(end_bytes, kBlockBytes);
  if (begin_bytes >= end_bytes) return 0;
  std::uint64_t present = 0;
  auto it = ends_.upper_bound(begin);
  if (it != ends_.begin()) --it;
  for (; it != ends_.end() && it->first < end; ++it) {
    const std::uint64_t from = std::max(begin, it->first);
    const std::uint64_t to = std::min(end, it->second);
    if (from < to) present += to - from;
  }
  return end - begin - present;
}

void ExtentSet::add(std::uint64_t begin_bytes, std::uint64_t end_bytes) {
  const std::uint64_t missing = missing_bytes(begin_bytes, end_bytes);
  if (missing == 0) return;
  total_bytes_ += missing;
  std::uint64_t begin = align_down(begin_bytes, kBlockBytes);
  std::uint64_t end = align_up(end_bytes, kBlockBytes);
  auto it = ends_.upper_bound(begin);
  if (it != ends_.begin() && std::prev(it)->second >= begin) --it;
  while (it != ends_.end() && it->first <= end) {
    begin = std::min(begin, it->first);
    end = std::max(end, it->second);
    it = ends_.erase(it);
  }
  ends_.emplace(begin, end);
}

void ExtentSet::cut(std::uint64_t end_bytes) {
  const std::uint64_t end = align_up(end_bytes, kBlockBytes);
  while (!ends_.empty()) {
    const auto last = std::prev(ends_.end());
    if (last->second <= end) return;
    const std::uint64_t from = std::max(last->first, end);
    total_bytes_ -= last->second - from;
    if (from == last->first) {
      ends_.erase(last);
    } else {
      last->second = from;
    }
  }
}

void SimFileData::apply_part(const Change& write, PowerLossModel::Range part, State& state) {
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

void SimFileData::lose_power(const PowerLossModel& model) {
  State left = std::move(durable_);
  for (const Change& change : pending_) {
    if (change.kind == Kind::kWrite) {
      for (const PowerLossModel::Range part :
           model.landing(change.sequence, {change.begin_bytes, change.end_bytes})) {
        apply_part(change, part, left);
      }
    } else if (model.metadata_survives(change.sequence)) {
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
