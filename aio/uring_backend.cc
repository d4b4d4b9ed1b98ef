#include "aio/uring_backend.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "aio/log.h"
#include "aio/units.h"
#include "aio/uring_ring.h"

namespace sluice::aio {
namespace {

// The kernel returns EFAULT for a larger piece.
constexpr std::uint64_t kMaxPieceBytes = kGiB;

std::string why_unregistered(int error_number) {
  std::string text = "IO buffers are not registered with io_uring (";
  if (error_number == ENOMEM) {
    rlimit limit{};
    ::getrlimit(RLIMIT_MEMLOCK, &limit);
    const bool limited = limit.rlim_cur != RLIM_INFINITY;
    return text +
           (limited ? "the memlock limit is " + format_bytes(limit.rlim_cur) +
                          ", and each IO thread's ring counts them once"
                    : "the kernel is short of memory") +
           "): transfers take a little more CPU time; raise the limit with ulimit -l or "
           "LimitMEMLOCK";
  }
  return text + Error::from_errno(error_number, {.operation = "registration"}).message() + ")";
}

}  // namespace

Result<std::unique_ptr<UringBackend>> UringBackend::create(const Options& options) {
  if (options.threads < 1 || options.threads > kMaxThreads || options.queue_depth < 1 ||
      options.queue_depth > kMaxQueueDepth) {
    return Error(ErrorCode::kInvalidArgument,
                 "io_uring takes 1 to " + std::to_string(kMaxThreads) + " threads of depth 1 to " +
                     std::to_string(kMaxQueueDepth) + ", not " + std::to_string(options.threads) +
                     " of depth " + std::to_string(options.queue_depth));
  }
  std::unique_ptr<UringBackend> backend(new UringBackend);
  for (int i = 0; i < options.threads; ++i) {
    backend->rings_.push_back(std::make_unique<UringRing>());
    SLUICE_RETURN_IF_ERROR(backend->rings_.back()->start({.queue_depth = options.queue_depth,
                                                          .single_submit = options.single_submit,
                                                          .owner = backend.get(),
                                                          .file_slots = kFileSlots,
                                                          .memory_slots = kMemorySlots},
                                                         backend->clock_));
  }
  return backend;
}

UringBackend::~UringBackend() = default;

void UringBackend::submit(std::span<IoOp* const> ops) noexcept {
  UringRing* here = UringRing::current();
  const auto is_mine = [&](const auto& ring) { return ring.get() == here; };
  // A single op from a completion stays on its ring, which saves a wake-up. Several ops are shared
  // with the other rings; otherwise all work would gradually gather on one ring.
  const bool stays = rings_.size() == 1 || ops.size() == 1;
  if (here != nullptr && stays && std::any_of(rings_.begin(), rings_.end(), is_mine)) {
    here->submit_here(ops);
    return;
  }
  // Equal, contiguous shares, beginning with the ring after those of the last batch.
  const std::size_t rings = std::min(rings_.size(), ops.size());
  for (std::size_t i = 0; i < rings; ++i) {
    const std::size_t begin = ops.size() * i / rings;
    const std::size_t end = ops.size() * (i + 1) / rings;
    const unsigned ring = next_ring_.fetch_add(1, std::memory_order_relaxed);
    rings_[ring % rings_.size()]->submit(ops.subspan(begin, end - begin));
  }
}

void UringBackend::attach(File& file) {
  const std::lock_guard lock(tables_mutex_);
  SLUICE_CHECK(file.backend_slot < 0, "a file was attached twice");
  const auto* free = std::find(file_slot_used_.begin(), file_slot_used_.end(), false);
  if (free == file_slot_used_.end()) {
    log::info_once("file-slots", "more than " + std::to_string(kFileSlots) +
                                     " files are open: further files are not registered");
    return;
  }
  const auto slot = static_cast<unsigned>(free - file_slot_used_.begin());
  for (std::size_t i = 0; i < rings_.size(); ++i) {
    if (rings_[i]->has_file_slots() && rings_[i]->set_file(slot, file.descriptor()) == 0) continue;
    while (i-- > 0) rings_[i]->set_file(slot, -1);
    log::info_once(
        "file-registration",
        "io_uring refuses to register files here: transfers take a little more CPU time");
    return;
  }
  file_slot_used_[slot] = true;
  file.backend_slot = static_cast<int>(slot);
  file.attached_to = this;
}

void UringBackend::detach(File& file) {
  const std::lock_guard lock(tables_mutex_);
  if (file.backend_slot < 0 || file.attached_to != this) return;
  for (auto& ring : rings_) ring->set_file(static_cast<unsigned>(file.backend_slot), -1);
  file_slot_used_[static_cast<std::size_t>(file.backend_slot)] = false;
  file.backend_slot = -1;
  file.attached_to = nullptr;
}

bool UringBackend::register_piece(unsigned slot, std::span<std::byte> piece) {
  for (std::size_t i = 0; i < rings_.size(); ++i) {
    const int result = rings_[i]->has_memory_slots() ? rings_[i]->set_memory(slot, piece) : -ENOSYS;
    if (result == 0) continue;
    log::info_once("unregistered", why_unregistered(-result));
    while (i-- > 0) rings_[i]->clear_memory(slot);
    return false;
  }
  memory_slots_[slot] = piece;
  return true;
}

bool UringBackend::attach_memory(std::span<std::byte> memory) {
  bool all = true;
  {
    const std::lock_guard lock(tables_mutex_);
    unsigned slot = 0;
    for (auto rest = memory; !rest.empty() && all;) {
      const auto piece = rest.first(std::min<std::uint64_t>(rest.size(), kMaxPieceBytes));
      rest = rest.subspan(piece.size());
      while (slot < kMemorySlots && !memory_slots_[slot].empty()) ++slot;
      all = slot < kMemorySlots && register_piece(slot, piece);
    }
  }
  // All or nothing: a caller that gets false need not detach before unmapping.
  if (!all) detach_memory(memory);
  return all;
}

void UringBackend::detach_memory(std::span<std::byte> memory) {
  const std::lock_guard lock(tables_mutex_);
  for (unsigned slot = 0; slot < kMemorySlots; ++slot) {
    auto& piece = memory_slots_[slot];
    if (piece.empty() || piece.data() < memory.data() ||
        piece.data() >= memory.data() + memory.size()) {
      continue;
    }
    for (auto& ring : rings_) ring->clear_memory(slot);
    piece = {};
  }
}

}  // namespace sluice::aio
