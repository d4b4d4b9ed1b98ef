// An optimizer problem with several units, and its solution, computed by the oracle on flat arrays.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "offload/adamw/adamw.h"
#include "offload/adamw/moment_rounding.h"
#include "offload/state/state_tiles.h"
#include "offload/sub_groups.h"
#include "swap/chunk_hash.h"
#include "tests/offload/adamw_case.h"

namespace sluice::offload {

using Bytes = std::vector<std::byte>;

// Sanitized code is slow: use fewer steps, and inject faults at a sample of the places.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

struct ProblemKind {
  ParamForm form;
  GradType grad;
  ElementType moments = ElementType::kFp32;

  StateForm state() const { return {.param = form, .moments = moments}; }
};
inline constexpr ProblemKind kProblemKinds[] = {
    {ParamForm::kSplit, GradType::kBf16},
    {ParamForm::kFp32AndFp16, GradType::kFp16},
    {ParamForm::kFp32, GradType::kFp32},
    {ParamForm::kSplit, GradType::kBf16, ElementType::kBf16},
    {ParamForm::kFp32AndFp16, GradType::kFp16, ElementType::kBf16},
    {ParamForm::kFp32, GradType::kFp32, ElementType::kBf16}};

inline int grad_bytes(GradType type) { return type == GradType::kFp32 ? 4 : 2; }

struct CanonicalUnit {
  std::vector<float> master, m, v;
};

// The problem: units with up to three parameter groups, hostile state, and mostly ordinary
// gradients (otherwise all values would be NaN after a few steps). And its solution.
class Problem {
 public:
  Problem(const ProblemKind& kind, std::vector<UnitSpec> units, int steps)
      : kind_(kind), units_(std::move(units)), steps_(steps) {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      AdamwCase state(units_[u].elements());
      fill_state(state, 100 + u);
      initial_.push_back({state.master, state.m, state.v});
      narrow_moments(state, u);
      flat_.push_back(std::move(state));
      for (int set = 0; set < gradient_sets(); ++set)
        gradients_.push_back(draw_gradients(units_[u].elements(), 1000 * u + set));
    }
    solve();
  }

  static constexpr std::uint64_t kRunSeed = 0xFEDCBA9876543210U;

  const ProblemKind& kind() const { return kind_; }
  const std::vector<UnitSpec>& units() const { return units_; }
  int steps() const { return steps_; }
  const CanonicalUnit& initial(int unit) const { return initial_[index(unit)]; }
  const CanonicalUnit& solution(int unit) const { return solution_[index(unit)]; }
  const Bytes& gradients(int step, int unit) const {
    return gradients_[index(unit) * index(gradient_sets()) + index(step % gradient_sets())];
  }
  std::size_t param_size_bytes(int unit) const {
    return units_[index(unit)].elements() *
           static_cast<std::size_t>(param_bytes_per_element(kind_.form));
  }
  // The hash of the unit's parameters after the step (0: the initial ones).
  std::uint64_t param_hash(int step, int unit) const {
    return hashes_[static_cast<std::size_t>(step) * units_.size() + index(unit)];
  }
  std::vector<AdamwScalars> scalars(int step) const {
    AdamwOptions options{.learning_rate = 1e-3 / (step + 1), .weight_decay = 0.1};
    options.step = step + 1;
    options.loss_scale = 128;
    options.grad_norm = 1 + step % 3;
    options.clip_norm = 2;
    AdamwOptions other = options;
    other.learning_rate *= 0.5;
    other.weight_decay = 0;
    AdamwOptions third = options;
    third.learning_rate *= 3;
    third.clip_value = 0x1p-8;
    return {make_adamw_scalars(options).value(), make_adamw_scalars(other).value(),
            make_adamw_scalars(third).value()};
  }

 private:
  // Steps have these in turn.
  int gradient_sets() const { return std::clamp(steps_, 1, 5); }
  static std::size_t index(int unit) { return static_cast<std::size_t>(unit); }

  static void fill_state(AdamwCase& state, std::uint64_t seed) {
    HostileNumbers numbers(seed);
    for (std::size_t i = 0; i < state.m.size(); ++i) {
      state.master[i] = join_master(split_master(numbers.hostile()));
      const SplitMaster halves = split_master(state.master[i]);
      state.param16[i] = halves.hi;
      state.lo[i] = halves.lo;
      state.m[i] = numbers.hostile();
      state.v[i] =
          std::bit_cast<float>(std::bit_cast<std::uint32_t>(numbers.hostile()) & ~(1U << 31));
    }
  }

  // Rounds moments like a restored state after step 0.
  static void narrow_moments(AdamwCase& state, std::size_t unit) {
    const MomentKeys keys = moment_keys({.run_seed = kRunSeed, .step = 0}, static_cast<int>(unit));
    const auto narrowed = [](float x, std::uint32_t random) {
      if (std::fabs(x) < 0x1p-126F) return std::uint16_t{0};
      return std::isnan(x) ? std::uint16_t{0x7FC0} : round_moment(x, random);
    };
    for (std::size_t i = 0; i < state.m.size(); ++i) {
      const std::uint32_t random = moment_bits(keys, i);
      state.m16[i] = narrowed(state.m[i], random & 0xFFFF);
      state.v16[i] = narrowed(state.v[i], random >> 16);
    }
  }

  Bytes draw_gradients(std::size_t elements, std::uint64_t seed) const {
    HostileNumbers numbers(seed);
    Bytes bytes(elements * static_cast<std::size_t>(grad_bytes(kind_.grad)));
    for (std::size_t i = 0; i < elements; ++i) {
      const bool hostile = numbers.bits() % 64 == 0;
      const float wide = hostile ? numbers.hostile() : 128 * numbers.ordinary();
      const std::uint16_t half = hostile                         ? numbers.hostile_half()
                                 : kind_.grad == GradType::kFp16 ? fp16_from_float(wide)
                                                                 : bf16_from_float(wide);
      if (kind_.grad == GradType::kFp32)
        std::memcpy(bytes.data() + 4 * i, &wide, 4);
      else
        std::memcpy(bytes.data() + 2 * i, &half, 2);
    }
    return bytes;
  }

  CanonicalUnit canonical(std::size_t u) const {
    const AdamwCase& state = flat_[u];
    CanonicalUnit unit{state.master, state.m, state.v};
    if (kind_.form == ParamForm::kSplit)
      for (std::size_t i = 0; i < unit.master.size(); ++i)
        unit.master[i] = join_master({.hi = state.param16[i], .lo = state.lo[i]});
    if (kind_.moments == ElementType::kBf16) {
      std::transform(state.m16.begin(), state.m16.end(), unit.m.begin(), float_from_bf16);
      std::transform(state.v16.begin(), state.v16.end(), unit.v.begin(), float_from_bf16);
    }
    return unit;
  }

  void solve() {
    const auto executor = aio::make_executor(2).value();
    for (int step = 0; step < steps_; ++step) {
      const std::vector<AdamwScalars> groups = scalars(step);
      for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
        std::size_t first = 0;
        const UnitSpec& unit = units_[index(u)];
        for (const GroupRange& range : unit.scalars.empty() ? unit.ranges : unit.scalars) {
          AdamwArrays arrays =
              flat_[index(u)].arrays({kind_.grad, kind_.form, false, kind_.moments}, first);
          arrays.moment_keys = moment_keys({.run_seed = kRunSeed, .step = step + 1}, u);
          arrays.first_element = first;
          arrays.grad =
              gradients(step, u).data() + first * static_cast<std::size_t>(grad_bytes(kind_.grad));
          adamw_step(*executor, Isa::kScalar, groups[static_cast<std::size_t>(range.group)], arrays,
                     range.elements);
          first += range.elements;
        }
        const AdamwCase& state = flat_[index(u)];
        const bool fp32 = kind_.form == ParamForm::kFp32;
        hashes_.push_back(swap::plain_hash(fp32 ? std::as_bytes(std::span(state.master))
                                                : std::as_bytes(std::span(state.param16))));
      }
    }
    for (std::size_t u = 0; u < units_.size(); ++u) solution_.push_back(canonical(u));
    flat_.clear();
  }

  const ProblemKind kind_;
  const std::vector<UnitSpec> units_;
  const int steps_;
  std::vector<AdamwCase> flat_;
  std::vector<CanonicalUnit> initial_, solution_;
  std::vector<Bytes> gradients_;
  std::vector<std::uint64_t> hashes_;
};

}  // namespace sluice::offload
