#include "aio/fault_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "aio/check.h"
#include "aio/split_mix.h"

namespace sluice::aio {
namespace {

template <typename Enum>
constexpr std::size_t index(Enum value) {
  return static_cast<std::size_t>(value);
}

bool moves_bytes(FaultTarget target) {
  return target == FaultTarget::kRead || target == FaultTarget::kWrite;
}

bool goes_to_backend(FaultTarget target) {
  return moves_bytes(target) || target == FaultTarget::kSync;
}

bool can_happen_now(FaultKind kind, const FaultDecider::Operation& operation) {
  // A transfer of one byte cannot be shortened, and one of zero bytes is already zero.
  if (kind == FaultKind::kShort && operation.length_bytes < 2) return false;
  if (kind == FaultKind::kZero && operation.length_bytes == 0) return false;
  return can_happen(kind, operation.target);
}

bool matches(const FaultRule& rule, const FaultDecider::Operation& operation) {
  const bool targeted = rule.targets.empty() ? goes_to_backend(operation.target)
                                             : std::find(rule.targets.begin(), rule.targets.end(),
                                                         operation.target) != rule.targets.end();
  return targeted && operation.path.find(rule.path_contains) != std::string_view::npos &&
         can_happen_now(rule.fault, operation);
}

}  // namespace

std::string_view to_string(FaultKind kind) {
  constexpr std::array<std::string_view, kFaultKinds> kNames = {
      "short", "EIO", "ENOSPC", "EINTR", "EAGAIN", "zero", "delay", "reorder", "torn write"};
  return kNames.at(index(kind));
}

std::string_view to_string(FaultTarget target) {
  constexpr std::array<std::string_view, kFaultTargets> kNames = {
      "read",           "write",    "sync",     "open",   "remove", "rename", "make directories",
      "sync directory", "allocate", "truncate", "look up"};
  return kNames.at(index(target));
}

std::vector<FaultTarget> all_fault_targets() {
  std::vector<FaultTarget> all;
  all.reserve(kFaultTargets);
  for (std::size_t i = 0; i < kFaultTargets; ++i) all.push_back(static_cast<FaultTarget>(i));
  return all;
}

bool can_happen(FaultKind kind, FaultTarget target) {
  switch (kind) {
    case FaultKind::kShort:
    case FaultKind::kZero:
      return moves_bytes(target);
    case FaultKind::kTornWrite:
      return target == FaultTarget::kWrite;
    case FaultKind::kDelay:
    case FaultKind::kReorder:
      return goes_to_backend(target);
    case FaultKind::kEnospc:
      return target != FaultTarget::kRead && target != FaultTarget::kLookUp &&
             target != FaultTarget::kRemove;
    case FaultKind::kEio:
    case FaultKind::kEintr:
    case FaultKind::kEagain:
      break;
  }
  return true;
}

FaultPlan FaultPlan::of(FaultRule rule) {
  FaultPlan plan;
  plan.rules.push_back(std::move(rule));
  return plan;
}

FaultDecider::FaultDecider(FaultPlan plan) { set_plan(std::move(plan)); }

void FaultDecider::set_plan(FaultPlan plan) {
  for (const FaultRule& rule : plan.rules) {
    SLUICE_CHECK(rule.nth > 0, "the first operation a fault rule can harm is number 1");
  }
  const std::lock_guard lock(mutex_);
  matches_.assign(plan.rules.size(), 0);
  operations_ = {};
  injected_ = {};
  plan_ = std::move(plan);
}

std::optional<FaultDecider::Verdict> FaultDecider::decide(const Operation& operation) {
  const std::lock_guard lock(mutex_);
  ++operations_[index(operation.target)];
  const auto verdict = choose_locked(operation);
  if (verdict) ++injected_[index(verdict->fault)];
  return verdict;
}

std::optional<FaultDecider::Verdict> FaultDecider::choose_locked(const Operation& operation) {
  const std::uint64_t number =
      std::accumulate(operations_.begin(), operations_.end(), std::uint64_t{0});
  SplitMix random(plan_.seed, number);
  std::optional<FaultKind> fault;
  std::uint32_t short_bytes = 0;
  for (std::size_t i = 0; i < plan_.rules.size(); ++i) {
    const FaultRule& rule = plan_.rules[i];
    if (!matches(rule, operation)) continue;
    ++matches_[i];
    const bool hits = rule.persistent ? matches_[i] >= rule.nth : matches_[i] == rule.nth;
    if (hits && !fault) {
      fault = rule.fault;
      short_bytes = rule.short_bytes;
    }
  }
  for (std::size_t i = 0; i < kFaultKinds && !fault && goes_to_backend(operation.target); ++i) {
    const auto kind = static_cast<FaultKind>(i);
    const bool drawn = random.chance(plan_.probability[i]);
    if (drawn && can_happen_now(kind, operation)) fault = kind;
  }
  if (!fault) return std::nullopt;
  if (*fault == FaultKind::kShort) {
    const std::uint32_t most = operation.length_bytes - 1;
    short_bytes = short_bytes != 0 ? std::min(short_bytes, most)
                                   : static_cast<std::uint32_t>(1 + random.below(most));
  }
  return Verdict{.fault = *fault,
                 .short_bytes = short_bytes,
                 .random = random.next(),
                 .delay_ns = plan_.delay_ns,
                 .reorder_window = plan_.reorder_window};
}

std::uint64_t FaultDecider::operations() const {
  const std::lock_guard lock(mutex_);
  return std::accumulate(operations_.begin(), operations_.end(), std::uint64_t{0});
}

std::uint64_t FaultDecider::operations(FaultTarget target) const {
  const std::lock_guard lock(mutex_);
  return operations_[index(target)];
}

std::uint64_t FaultDecider::injected() const {
  const std::lock_guard lock(mutex_);
  return std::accumulate(injected_.begin(), injected_.end(), std::uint64_t{0});
}

std::uint64_t FaultDecider::injected(FaultKind kind) const {
  const std::lock_guard lock(mutex_);
  return injected_[index(kind)];
}

}  // namespace sluice::aio
