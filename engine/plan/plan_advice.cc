#include "engine/plan/plan_advice.h"

#include <algorithm>
#include <optional>

#include "aio/units.h"

namespace sluice::engine {
namespace {

using Change = offload::FitHint::Change;
using Hint = std::optional<offload::FitHint>;

// The input for another configuration; everything else is as placed.
Result<offload::PlannerInput> input_with(const PlanSubject& subject, const config::Config& config,
                                         const PlacedRun& placed) {
  return input_of(subject, config, placed.machine.report, placed.input.budget,
                  placed.input.step.waves.of_a_wave);
}

Result<bool> fits_with(const PlanSubject& subject, const config::Config& config,
                       const PlacedRun& placed) {
  SLUICE_ASSIGN_OR_RETURN(const offload::PlannerInput input, input_with(subject, config, placed));
  return offload::leanest_placement(input).missing.total() == 0;
}

// If no path was named: the size of a drive that would make the run fit. The planner finds it for a
// run that has a small drive.
Result<Hint> a_drive(const PlanSubject& subject, const PlacedRun& placed) {
  if (!placed.machine.stripes.paths.empty()) return Hint();
  constexpr std::uint64_t kSmallDriveBytes = kGiB;
  config::Config config = subject.config;
  config.budget.nvme_paths = {"nvme"};
  offload::TierBytes budget = placed.input.budget;
  budget.nvme = kSmallDriveBytes;
  SLUICE_ASSIGN_OR_RETURN(
      const offload::PlannerInput input,
      input_of(subject, config, placed.machine.report, budget, placed.input.step.waves.of_a_wave));
  for (const offload::FitHint& hint : offload::fit_hints(input)) {
    if (hint.change != Change::kMoreNvme) continue;
    return Hint({.change = Change::kMoreNvme, .more_bytes = hint.more_bytes + kSmallDriveBytes});
  }
  return Hint();
}

// If the configuration sets the size of waves: the largest smaller size with which the run fits.
Result<Hint> smaller_waves(const PlanSubject& subject, const PlacedRun& placed) {
  config::Config config = subject.config;
  std::int64_t& wave = config.placement.wave_micro_batches;
  wave = std::min(wave, config.batch.accumulation);
  while (wave > 1) {
    wave = (wave + 1) / 2;
    SLUICE_ASSIGN_OR_RETURN(const bool fits, fits_with(subject, config, placed));
    if (fits) return Hint({.change = Change::kSmallerWaves, .wave_micro_batches = wave});
  }
  return Hint();
}

// Changes that reduce activations: the largest micro-batch with which the run fits, with the same
// tokens per step; or else the longest sequences.
Result<Hint> a_smaller_batch(const PlanSubject& subject, const PlacedRun& placed) {
  const config::BatchSizes& batch = subject.config.batch;
  for (std::int64_t micro = batch.micro / 2; micro >= 1; --micro) {
    if (batch.micro % micro != 0) continue;
    config::Config config = subject.config;
    config.batch.accumulation *= batch.micro / micro;
    config.batch.micro = micro;
    SLUICE_ASSIGN_OR_RETURN(const bool fits, fits_with(subject, config, placed));
    if (fits) return Hint({.change = Change::kSmallerMicroBatch, .micro_batch = micro});
  }
  if (subject.is_module) return Hint();  // the plan cannot shorten a module's sequences
  constexpr std::int64_t kShortest = 64;
  config::Config config = subject.config;
  std::int64_t& tokens = config.data.sequence_tokens;
  while ((tokens /= 2) >= kShortest) {
    SLUICE_ASSIGN_OR_RETURN(const bool fits, fits_with(subject, config, placed));
    if (fits) return Hint({.change = Change::kShorterSequences, .sequence_tokens = tokens});
  }
  return Hint();
}

}  // namespace

Result<std::vector<offload::FitHint>> fit_hints(const PlanSubject& subject,
                                                const PlacedRun& placed) {
  std::vector<offload::FitHint> hints = placed.placement.hints;
  if (placed.placement.fits) return hints;
  SLUICE_ASSIGN_OR_RETURN(const auto drive, a_drive(subject, placed));
  if (drive) {
    const auto behind = std::find_if(hints.begin(), hints.end(), [](const offload::FitHint& it) {
      return it.change > Change::kMoreNvme;
    });
    hints.insert(behind, *drive);
  }
  for (const auto hint : {smaller_waves, a_smaller_batch}) {
    SLUICE_ASSIGN_OR_RETURN(const auto found, hint(subject, placed));
    if (found) hints.push_back(*found);
  }
  return hints;
}

Result<std::vector<offload::WhatIf>> what_ifs(const PlanSubject& subject, const PlacedRun& placed) {
  // A micro-batch with twice the tokens takes twice the time.
  const auto twice = [&](const offload::PlannerInput&) -> Result<offload::PlannerInput> {
    config::Config config = subject.config;
    config.batch.micro *= 2;
    PlacedRun slower = placed;
    for (UnitTimes::OfKind& it : slower.machine.report.units.kinds) {
      it.seconds.forward_s *= 2;
      it.seconds.recompute_s *= 2;
      it.seconds.backward_s *= 2;
    }
    return input_with(subject, config, slower);
  };
  return offload::find_what_ifs(
      placed.input, placed.placement,
      {.more_ram_bytes = subject.ranks.share_of(offload::WhatIfOptions().more_ram_bytes),
       .twice_micro_batch = twice});
}

}  // namespace sluice::engine
