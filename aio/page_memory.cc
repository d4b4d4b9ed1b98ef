#include "aio/page_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string>
#include <utility>

#include "aio/units.h"

#ifndef MAP_HUGE_2MB
#define MAP_HUGE_2MB (21 << 26)  // independent of the default size of huge pages
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; Debian 12's glibc headers may be older
#endif

namespace sluice::aio {
namespace {

constexpr std::uint64_t kSmallPage = 4096;
constexpr std::uint64_t kHugePage = 2 * kMiB;
constexpr std::uint64_t kSmallAlignment = 128 * kKiB;  // without huge pages: the largest direct
                                                       // sector

void* map_anonymous(std::uint64_t size_bytes, int extra_flags) {
  return ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | extra_flags, -1, 0);
}

// A mapping that starts on a huge-page boundary; otherwise the kernel never uses huge pages at its
// ends.
std::byte* map_aligned(std::uint64_t size_bytes, std::uint64_t alignment) {
  const std::uint64_t padded = size_bytes + alignment;
  void* raw = map_anonymous(padded, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(raw);
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  const std::uint64_t head = align_up(address, alignment) - address;
  if (head > 0) ::munmap(begin, head);
  const std::uint64_t tail = padded - head - size_bytes;
  if (tail > 0) ::munmap(begin + head + size_bytes, tail);
  return begin + head;
}

// Touches every page, so that a shortage of memory is an error here and no page faults occur later.
int populate(std::byte* data, std::uint64_t size_bytes) {
  while (::madvise(data, size_bytes, MADV_POPULATE_WRITE) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno != EINVAL) return errno;
    // Kernels before 5.14: touch the pages individually.
    for (std::uint64_t i = 0; i < size_bytes; i += kSmallPage) {
      *static_cast<volatile std::byte*>(data + i) = std::byte{0};
    }
    break;
  }
  return 0;
}

// Pieces are multiples of a huge page, so that two threads never fault in the same page.
int populate_with(Executor& executor, std::byte* data, std::uint64_t size_bytes) {
  constexpr std::uint64_t kPieceBytes = 256 * kMiB;
  std::atomic<int> failure{0};
  executor.run(static_cast<int>((size_bytes - 1) / kPieceBytes + 1), [&](int piece) {
    const std::uint64_t begin = static_cast<std::uint64_t>(piece) * kPieceBytes;
    const int result = populate(data + begin, std::min(kPieceBytes, size_bytes - begin));
    if (result != 0) failure = result;
  });
  return failure;
}

Error out_of_memory(std::uint64_t size_bytes) {
  return Error(ErrorCode::kOutOfMemory,
               "could not get " + format_bytes(size_bytes) +
                   " of memory for IO buffers: use fewer or smaller buffers, or free memory");
}

}  // namespace

std::string_view to_string(PageKind kind) {
  switch (kind) {
    case PageKind::kSmall:
      return "4 KiB pages";
    case PageKind::kTransparent:
      return "transparent huge pages";
    case PageKind::kHugeTlb:
      return "reserved 2 MiB pages";
  }
  return "unknown pages";
}

Result<PageMemory> PageMemory::map(std::uint64_t size_bytes, bool huge_pages, Executor* executor) {
  if (size_bytes == 0) return Error(ErrorCode::kInvalidArgument, "a mapping of 0 bytes");
  PageMemory memory;
  if (huge_pages && size_bytes % kHugePage == 0) {
    // Fails immediately if the administrator has reserved too few.
    void* raw = map_anonymous(size_bytes, MAP_HUGETLB | MAP_HUGE_2MB);
    if (raw != MAP_FAILED) {
      memory.data_ = static_cast<std::byte*>(raw);
      memory.page_kind_ = PageKind::kHugeTlb;
    }
  }
  memory.size_bytes_ = mapped_bytes(size_bytes);
  if (memory.data_ == nullptr) {
    const bool huge = huge_pages && size_bytes >= kHugePage;
    memory.data_ = map_aligned(memory.size_bytes_, huge ? kHugePage : kSmallAlignment);
    if (memory.data_ == nullptr) return out_of_memory(size_bytes);
    if (huge && ::madvise(memory.data_, memory.size_bytes_, MADV_HUGEPAGE) == 0) {
      memory.page_kind_ = PageKind::kTransparent;
    }
  }
  ::madvise(memory.data_, memory.size_bytes_, MADV_DONTFORK);
  const int failure = executor != nullptr
                          ? populate_with(*executor, memory.data_, memory.size_bytes_)
                          : populate(memory.data_, memory.size_bytes_);
  if (failure != 0) return out_of_memory(size_bytes);
  return memory;
}

std::uint64_t PageMemory::mapped_bytes(std::uint64_t size_bytes) {
  return align_up(size_bytes, kSmallPage);
}

PageMemory::PageMemory(PageMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      page_kind_(other.page_kind_) {}

PageMemory& PageMemory::operator=(PageMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(page_kind_, other.page_kind_);
  return *this;
}

PageMemory::~PageMemory() {
  if (data_ != nullptr) ::munmap(data_, size_bytes_);
}

}  // namespace sluice::aio
