#include "engine/plan/drive_wear.h"

#include <cstdint>

#include "aio/units.h"
#include "engine/plan/planner_input.h"

namespace sluice::engine {
namespace {

using offload::FitHint;
using offload::TierBytes;
using offload::WhatIf;

bool has_fp32_moments(const config::Config& config) {
  return config.optimizer.moments == config::MomentType::kFp32;
}

config::Config with_bf16_moments(config::Config config) {
  config.optimizer.moments = config::MomentType::kBf16;
  return config;
}

config::Config with_accumulation(config::Config config, std::int64_t micro_batches) {
  config.batch.accumulation = micro_batches;
  return config;
}

// In TB per day, of all ranks of a host.
double of_host(const RunPlan& plan, double bytes, double seconds) {
  return bytes / seconds * plan.ranks.local_world / kTbPerDay;
}

// Finds changes with which a run fits.
class HintSearch {
 public:
  HintSearch(const PlanSubject& subject, const PlacedRun& placed)
      : subject_(subject), placed_(placed) {}

  Result<std::vector<FitHint>> run() {
    SLUICE_RETURN_IF_ERROR(add_accumulation());
    if (has_fp32_moments(subject_.config)) {
      SLUICE_ASSIGN_OR_RETURN(const bool fits, fits_with(with_bf16_moments(subject_.config)));
      if (fits) hints_.push_back({.change = FitHint::Change::kBf16Moments});
    }
    SLUICE_RETURN_IF_ERROR(add_ram());
    return std::move(hints_);
  }

 private:
  Result<Candidate> best_with(config::Config config, std::uint64_t more_ram_bytes = 0) const {
    TierBytes budget = placed_.input.budget;
    budget.cpu += more_ram_bytes;
    // On NVMe gradients only write more.
    if (!StepChoice::of(placed_.input).moves_gradients)
      config.placement.gradients_to_nvme = Tristate::kOff;
    return best_candidate(subject_, config, placed_.machine.report, budget);
  }
  Result<bool> fits_with(const config::Config& config, std::uint64_t more_ram_bytes = 0) const {
    SLUICE_ASSIGN_OR_RETURN(const Candidate found, best_with(config, more_ram_bytes));
    return found.placement.fits;
  }

  // A step writes as much state however long it is, so it has to be as many times as long as too
  // much is written. Doublings are tried from there, while they write less: what grows with a step,
  // such as units' inputs, may be what is written.
  Status add_accumulation() {
    constexpr int kMostTries = 3;
    constexpr double kMostTimes = 1024;
    constexpr double kLess = 0.95;
    const offload::StepPrediction& step = placed_.placement.prediction;
    double written = step.nvme_write_bytes / step.step_s;
    const double too_much = written / placed_.input.max_nvme_write_bytes_per_s;
    if (too_much > kMostTimes) return {};
    std::int64_t times = 2;
    while (static_cast<double>(times) < too_much) times *= 2;
    for (int tries = 0; tries < kMostTries; ++tries, times *= 2) {
      const std::int64_t accumulation = times * subject_.config.batch.accumulation;
      SLUICE_ASSIGN_OR_RETURN(const Candidate found,
                              best_with(with_accumulation(subject_.config, accumulation)));
      if (found.placement.fits) {
        hints_.push_back(
            {.change = FitHint::Change::kMoreAccumulation, .accumulation = accumulation});
        return {};
      }
      const offload::StepPrediction& longer = found.placement.prediction;
      const double then = longer.nvme_write_bytes / longer.step_s;
      if (then > kLess * written) return {};
      written = then;
    }
    return {};
  }

  Status add_ram() {
    constexpr std::uint64_t kLeast = 8 * kGiB;
    constexpr std::uint64_t kMost = 128 * kGiB;
    for (std::uint64_t more = kLeast; more <= kMost; more *= 2) {
      const std::uint64_t of_rank = subject_.ranks.share_of(more);
      SLUICE_ASSIGN_OR_RETURN(const bool fits, fits_with(subject_.config, of_rank));
      if (!fits) continue;
      hints_.push_back({.change = FitHint::Change::kMoreCpu, .more_bytes = of_rank});
      return {};
    }
    return {};
  }

  const PlanSubject& subject_;
  const PlacedRun& placed_;
  std::vector<FitHint> hints_;
};

}  // namespace

std::optional<DriveWear> drive_wear(const RunPlan& plan) {
  const offload::StepPrediction& step = plan.placement.prediction;
  if (step.nvme_write_bytes <= 0) return std::nullopt;
  const double tb = of_host(plan, step.nvme_write_bytes, step.step_s);
  return DriveWear{.tb_per_day = tb, .days = plan.drive_tbw / tb};
}

double tb_per_day(const RunPlan& plan, const WhatIf& with) {
  return of_host(plan, with.nvme_write_bytes, with.step_s);
}

Result<std::vector<FitHint>> wear_hints(const PlanSubject& subject, const PlacedRun& placed) {
  return HintSearch(subject, placed).run();
}

Result<std::vector<WhatIf>> wear_what_ifs(const PlanSubject& subject, const PlacedRun& placed) {
  const offload::StepPrediction& step = placed.placement.prediction;
  std::vector<WhatIf> found;
  if (step.nvme_write_bytes == 0) return found;
  const auto add = [&](WhatIf::Change change, const config::Config& config,
                       double tokens) -> Status {
    SLUICE_ASSIGN_OR_RETURN(
        const Candidate changed,
        best_candidate(subject, config, placed.machine.report, placed.input.budget));
    if (changed.placement.fits)
      found.push_back(offload::what_if(change, step, changed.placement.prediction, tokens));
    return {};
  };
  const config::Config& config = subject.config;
  SLUICE_RETURN_IF_ERROR(add(WhatIf::Change::kTwiceAccumulation,
                             with_accumulation(config, 2 * config.batch.accumulation), 2));
  if (has_fp32_moments(config))
    SLUICE_RETURN_IF_ERROR(add(WhatIf::Change::kBf16Moments, with_bf16_moments(config), 1));
  return found;
}

}  // namespace sluice::engine
