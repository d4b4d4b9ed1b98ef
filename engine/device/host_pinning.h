// HostPinning: pins host memory for the GPU, and counts it. It is the only place that does, so that
// a refusal has one consequence everywhere. The memory stays pageable, copies pass through a
// buffer of HostCopies or of the driver, and results keep their bits.
//
// A machine may refuse: WSL2 limits what can be pinned, as do some containers. The first refusal is
// logged, with what it costs and what to do.
//
// Threads: any.
// Errors:  pin() fails only if the GPU itself does not work. A refusal is not an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "aio/pinned_pool.h"
#include "aio/result.h"

namespace sluice::engine {

class HostPinning {
 public:
  // The driver's calls, or a test's. `pin` returns kOutOfMemory, with the driver's reason, if it
  // refuses, and leaves no pending error in CUDA.
  struct Driver {
    std::function<Status(std::span<std::byte>)> pin;
    std::function<void(std::span<std::byte>)> unpin;
  };
  enum class OnRefusal : std::uint8_t { kWarnOnce, kSayNothing };

  // Refuses what exceeds `limit_bytes` in total, without asking the driver (for tests).
  explicit HostPinning(Driver driver, std::optional<std::uint64_t> limit_bytes = {});
  HostPinning(const HostPinning&) = delete;
  HostPinning& operator=(const HostPinning&) = delete;

  // Whether the memory is pinned now. It must be unpinned in either case before it is unmapped.
  Result<bool> pin(std::span<std::byte> memory, OnRefusal on_refusal = OnRefusal::kWarnOnce);
  void unpin(std::span<std::byte> memory);
  // Whether all of it belongs to one pinned memory.
  bool is_pinned(std::span<const std::byte> memory) const;

  std::uint64_t pinned_bytes() const;
  // Memory in use that was to be pinned, and could not be.
  std::uint64_t refused_bytes() const;
  // For pools. Pinning by it succeeds where memory stays pageable. Must outlive the pools.
  aio::PinHook hook();

  void set_limit(std::optional<std::uint64_t> limit_bytes);  // for tests

 private:
  struct Memory {
    std::uint64_t bytes = 0;
    bool pinned = false;
  };

  Status ask(std::span<std::byte> memory);
  void warn_once(std::uint64_t bytes, const std::string& reason) const;

  const Driver driver_;
  mutable std::mutex mutex_;
  std::optional<std::uint64_t> limit_bytes_;  // guarded by mutex_, like all below
  std::map<const std::byte*, Memory> all_;    // by first byte
  std::uint64_t pinned_bytes_ = 0;
  std::uint64_t refused_bytes_ = 0;
};

// The limit in the text of the environment variable kPinLimitVariable; nullopt without a text.
// kInvalidArgument: it is no size.
inline constexpr const char* kPinLimitVariable = "SLUICE_TEST_PIN_LIMIT";
Result<std::optional<std::uint64_t>> parse_pin_limit(const char* text);

}  // namespace sluice::engine
