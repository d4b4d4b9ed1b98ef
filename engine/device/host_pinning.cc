#include "engine/device/host_pinning.h"

#include <iterator>
#include <utility>

#include "aio/check.h"
#include "aio/log.h"
#include "aio/units.h"

namespace sluice::engine {

HostPinning::HostPinning(Driver driver, std::optional<std::uint64_t> limit_bytes)
    : driver_(std::move(driver)), limit_bytes_(limit_bytes) {}

// Reserves the bytes before the driver is asked, which can take seconds, so that threads together
// keep the limit.
Status HostPinning::ask(std::span<std::byte> memory) {
  {
    const std::lock_guard lock(mutex_);
    if (limit_bytes_ && pinned_bytes_ + memory.size() > *limit_bytes_)
      return Error(ErrorCode::kOutOfMemory,
                   std::string(kPinLimitVariable) + " is " + format_bytes(*limit_bytes_));
    pinned_bytes_ += memory.size();
  }
  Status pinned = driver_.pin(memory);
  if (pinned.ok()) return pinned;
  const std::lock_guard lock(mutex_);
  pinned_bytes_ -= memory.size();
  return pinned;
}

Result<bool> HostPinning::pin(std::span<std::byte> memory, OnRefusal on_refusal) {
  const Status asked = ask(memory);
  if (!asked.ok() && asked.error().code() != ErrorCode::kOutOfMemory)
    return Error(asked.error())
        .with_context("pinning " + format_bytes(memory.size()) + " of host memory for the GPU");
  if (!asked.ok() && on_refusal == OnRefusal::kWarnOnce)
    warn_once(memory.size(), asked.error().message());
  const std::lock_guard lock(mutex_);
  const bool is_new =
      all_.emplace(memory.data(), Memory{.bytes = memory.size(), .pinned = asked.ok()}).second;
  SLUICE_CHECK(is_new, "memory is pinned once");
  if (!asked.ok()) refused_bytes_ += memory.size();
  return asked.ok();
}

void HostPinning::unpin(std::span<std::byte> memory) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(memory.data());
    SLUICE_CHECK(found != all_.end() && found->second.bytes == memory.size(),
                 "only memory that pin() was given is unpinned");
    const bool pinned = found->second.pinned;
    (pinned ? pinned_bytes_ : refused_bytes_) -= memory.size();
    all_.erase(found);
    if (!pinned) return;
  }
  driver_.unpin(memory);
}

bool HostPinning::is_pinned(std::span<const std::byte> memory) const {
  const std::lock_guard lock(mutex_);
  const auto after = all_.upper_bound(memory.data());
  if (after == all_.begin()) return false;
  const auto& [first, found] = *std::prev(after);
  return found.pinned && memory.data() + memory.size() <= first + found.bytes;
}

std::uint64_t HostPinning::pinned_bytes() const {
  const std::lock_guard lock(mutex_);
  return pinned_bytes_;
}

std::uint64_t HostPinning::refused_bytes() const {
  const std::lock_guard lock(mutex_);
  return refused_bytes_;
}

aio::PinHook HostPinning::hook() {
  return {.pin = [this](std::span<std::byte> memory) -> Status { return pin(memory).status(); },
          .unpin = [this](std::span<std::byte> memory) { unpin(memory); }};
}

void HostPinning::set_limit(std::optional<std::uint64_t> limit_bytes) {
  const std::lock_guard lock(mutex_);
  limit_bytes_ = limit_bytes;
}

void HostPinning::warn_once(std::uint64_t bytes, const std::string& reason) const {
  log::warning_once(
      "host-pinning",
      format_bytes(bytes) + " of host memory cannot be pinned for the GPU (" + reason + "; " +
          format_bytes(pinned_bytes()) +
          " are pinned). Copies of this memory pass through a small buffer: results are the same, "
          "but steps are slower. `sluice probe --refresh` measures by how much, and later plans "
          "include it. To change it, offload less. On WSL2, where 1 GiB is usual, try a larger "
          "memory= "
          "in .wslconfig; elsewhere free memory, or raise ulimit -l (see \"Pinned memory\" in "
          "docs/troubleshooting.md)");
}

Result<std::optional<std::uint64_t>> parse_pin_limit(const char* text) {
  if (text == nullptr) return std::optional<std::uint64_t>();
  const auto bytes = parse_bytes(text);
  if (!bytes.ok())
    return Error(ErrorCode::kInvalidArgument, std::string(kPinLimitVariable) + " is '" + text +
                                                  "', which is not a size such as 0 or 64M");
  return std::optional(*bytes);
}

}  // namespace sluice::engine
