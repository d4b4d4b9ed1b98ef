// FaultPlan: which operations a FaultBackend makes fail, and how. FaultDecider: applies the plan.
//
// A rule affects the n-th operation that it matches, or every one from the n-th on. Each rule
// counts operations separately, in the order of submission. It counts only those that it applies
// to: its targets (by default every transfer and sync that the fault can happen to), on paths that
// contain path_contains. If several rules match one operation, the first one applies. In addition
// to rules, each fault can happen with a probability. Everything depends only on the seed and the
// operation's number.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aio/io_backend.h"

namespace sluice::aio {

enum class FaultKind : std::uint8_t {
  kShort,   // a transfer of fewer bytes than requested, at least 1
  kEio,     // this and the next three: an error, and nothing was done
  kEnospc,  // writes, and calls that allocate space
  kEintr,
  kEagain,
  kZero,       // a transfer of 0 bytes, and nothing was done
  kDelay,      // done in time, but reported much later
  kReorder,    // done in time, but reported after operations that were submitted later
  kTornWrite,  // some of the bytes are written, then EIO
};
inline constexpr std::size_t kFaultKinds = 9;
std::string_view to_string(FaultKind kind);

enum class FaultTarget : std::uint8_t {
  kRead,
  kWrite,
  kSync,
  // Calls of files(); only kEio, kEnospc, kEintr and kEagain happen to them.
  kOpen,  // and lock
  kRemove,
  kRename,
  kMakeDirectories,
  kSyncDirectory,
  kAllocate,
  kTruncate,
  kLookUp,  // size, exists, kind, list, free bytes
};
inline constexpr std::size_t kFaultTargets = 11;
std::string_view to_string(FaultTarget target);
std::vector<FaultTarget> all_fault_targets();

// Whether the fault can happen to such an operation.
bool can_happen(FaultKind kind, FaultTarget target);

struct FaultRule {
  FaultKind fault = FaultKind::kEio;
  std::uint64_t nth = 1;               // 1: the first matching operation
  bool persistent = false;             // every operation from the n-th on, not just once
  std::vector<FaultTarget> targets{};  // empty: reads, writes and syncs
  std::string path_contains{};         // empty: any path
  std::uint32_t short_bytes = 0;       // kShort: the count to report; 0: drawn from the seed
};

struct FaultPlan {
  std::vector<FaultRule> rules{};
  std::array<double, kFaultKinds> probability{};  // by FaultKind; for reads, writes and syncs
  std::uint64_t seed = 1;
  std::int64_t delay_ns = 20'000'000;  // kDelay
  std::size_t reorder_window = 8;      // kReorder: maximum number held back

  // A plan with only this rule.
  static FaultPlan of(FaultRule rule);
};

// Threads: any.
class FaultDecider {
 public:
  explicit FaultDecider(FaultPlan plan);

  struct Operation {
    FaultTarget target;
    std::string_view path;
    std::uint32_t length_bytes = 0;  // for transfers
  };
  struct Verdict {
    FaultKind fault;
    std::uint32_t short_bytes;   // kShort
    std::uint64_t random;        // for this operation, for other random choices
    std::int64_t delay_ns;       // kDelay
    std::size_t reorder_window;  // kReorder
  };
  // Counts the operation, and the fault if one is to happen.
  std::optional<Verdict> decide(const Operation& operation);

  // Applies another plan from now on, with every count at 0.
  void set_plan(FaultPlan plan);

  std::uint64_t operations() const;  // so far
  std::uint64_t operations(FaultTarget target) const;
  std::uint64_t injected() const;
  std::uint64_t injected(FaultKind kind) const;

 private:
  std::optional<Verdict> choose_locked(const Operation& operation);

  mutable std::mutex mutex_;  // guards all members below
  FaultPlan plan_;
  std::vector<std::uint64_t> matches_;  // by rule
  std::array<std::uint64_t, kFaultTargets> operations_{};
  std::array<std::uint64_t, kFaultKinds> injected_{};
};

}  // namespace sluice::aio
