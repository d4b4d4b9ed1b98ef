// FaultPlan: which operations a FaultBackend harms, and how. FaultDecider: the plan in action.
//
// A rule harms the n-th operation that it matches, or every one from the n-th on. Operations are
// counted in the order of submission, each rule for itself, and only those it applies to: targets
// (by default every transfer and sync that the fault can happen to) on a path that contains
// path_contains. Where several rules hit one operation, the first one counts. In addition to rules,
// each fault can happen with a probability. Everything depends on the seed and the operation's
// number alone.
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
  kShort,   // a transfer of fewer bytes than asked, at least 1
  kEio,     // an error, and nothing was done; this and the next three
  kEnospc,  // writes, and calls that take space
  kEintr,
  kEagain,
  kZero,       // a transfer of 0 bytes, and nothing was done
  kDelay,      // done in time, reported much later
  kReorder,    // done in time, reported after others that were submitted later
  kTornWrite,  // part of the bytes land, then EIO
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

// Whether the fault can happen to such an operation at all.
bool can_happen(FaultKind kind, FaultTarget target);

struct FaultRule {
  FaultKind fault = FaultKind::kEio;
  std::uint64_t nth = 1;               // 1: the first operation that matches
  bool persistent = false;             // from the n-th on always, not just once
  std::vector<FaultTarget> targets{};  // empty: reads, writes and syncs
  std::string path_contains{};         // empty: any path
  std::uint32_t short_bytes = 0;       // kShort: how many are reported; 0: drawn from the seed
};

struct FaultPlan {
  std::vector<FaultRule> rules{};
  std::array<double, kFaultKinds> probability{};  // by FaultKind; of reads, writes and syncs
  std::uint64_t seed = 1;
  std::int64_t delay_ns = 20'000'000;  // kDelay
  std::size_t reorder_window = 8;      // kReorder: at most this many are held back

  // A plan of this one rule.
  static FaultPlan of(FaultRule rule);
};

// Threads: any.
class FaultDecider {
 public:
  explicit FaultDecider(FaultPlan plan);

  struct Operation {
    FaultTarget target;
    std::string_view path;
    std::uint32_t length_bytes = 0;  // of transfers
  };
  struct Verdict {
    FaultKind fault;
    std::uint32_t short_bytes;   // kShort
    std::uint64_t random;        // of this operation, for whatever else must be drawn
    std::int64_t delay_ns;       // kDelay
    std::size_t reorder_window;  // kReorder
  };
  // Counts the operation, and the fault if it is to happen.
  std::optional<Verdict> decide(const Operation& operation);

  // From here on another plan applies, with every count at 0.
  void set_plan(FaultPlan plan);

  std::uint64_t operations() const;  // seen so far
  std::uint64_t operations(FaultTarget target) const;
  std::uint64_t injected() const;
  std::uint64_t injected(FaultKind kind) const;

 private:
  std::optional<Verdict> choose_locked(const Operation& operation);

  mutable std::mutex mutex_;  // guards all below
  FaultPlan plan_;
  std::vector<std::uint64_t> matches_;  // of each rule
  std::array<std::uint64_t, kFaultTargets> operations_{};
  std::array<std::uint64_t, kFaultKinds> injected_{};
};

}  // namespace sluice::aio
