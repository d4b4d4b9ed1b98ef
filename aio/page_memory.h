// PageMemory: an anonymous mapping aligned to 128 KiB, on huge pages if available.
//
// Zeroed. Resident from the start (every page is touched). Never shared with a forked child, so
// that a DMA in flight cannot write to the wrong copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "aio/executor.h"
#include "aio/result.h"

namespace sluice::aio {

enum class PageKind : std::uint8_t {
  kSmall,        // 4 KiB
  kTransparent,  // MADV_HUGEPAGE was accepted: the kernel uses 2 MiB pages where it can
  kHugeTlb,      // from the machine's reserved 2 MiB pages
};
std::string_view to_string(PageKind kind);

class PageMemory {
 public:
  // kOutOfMemory names the requested size. size_bytes is rounded up to whole pages. `executor`
  // touches the pages with all its threads: a single thread takes a quarter of a second per GiB.
  static Result<PageMemory> map(std::uint64_t size_bytes, bool huge_pages,
                                Executor* executor = nullptr);

  // The bytes that map() takes for this size.
  static std::uint64_t mapped_bytes(std::uint64_t size_bytes);

  PageMemory() = default;
  PageMemory(PageMemory&& other) noexcept;
  PageMemory& operator=(PageMemory&& other) noexcept;
  ~PageMemory();

  std::byte* data() const { return data_; }
  std::uint64_t size_bytes() const { return size_bytes_; }
  std::span<std::byte> bytes() const { return {data_, size_bytes_}; }
  PageKind page_kind() const { return page_kind_; }

 private:
  std::byte* data_ = nullptr;
  std::uint64_t size_bytes_ = 0;
  PageKind page_kind_ = PageKind::kSmall;
};

}  // namespace sluice::aio
