#include "aio/sparse_pages.h"

#include <algorithm>
#include <cstring>

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

}  // namespace sluice::aio
