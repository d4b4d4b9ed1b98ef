#include "engine/runtime/step_update.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <numeric>
#include <utility>

#include "aio/clock.h"
#include "engine/step/train_error.h"

namespace sluice::engine {

void StepUpdate::end(const GradientTotals& totals, const Data& data, StepOutcome& outcome) {
  if (totals.finite) {
    outcome.grad_norm = std::sqrt(totals.square_sum) / outcome.loss_scale;
    apply(outcome);
  } else {
    const std::string& unit = totals.first_not_finite
                                  ? parts_.model().layout(*totals.first_not_finite).name
                                  : totals.not_finite_elsewhere;
    outcome.warning = skip_step(options_.rules,
                                {.unit = unit, .suspects = [&] { return suspects(data); }}, state_);
    outcome.skipped = true;
  }
  outcome.times.update_ns = parts_.binding().last_step_ns();
}

void StepUpdate::apply(StepOutcome& outcome) {
  make_scalars(options_.rules, state_, outcome.grad_norm, scalars_);
  count_applied(options_.rules, state_);
  const SteadyClock clock;
  const std::int64_t begin_ns = clock.now_ns();
  std::vector<int> units(static_cast<std::size_t>(parts_.model().units()));
  std::iota(units.begin(), units.end(), 0);
  parts_.expect_gradients(units);
  throw_if_error(parts_.optimizer().step({.groups = scalars_,
                                          .source = &parts_.binding(),
                                          .background = options_.in_background,
                                          .number = state_.applied_step,  // already counts this one
                                          .keeps_parameters = expects_save_}));
  outcome.times.update_exposed_ns += clock.now_ns() - begin_ns;
  parts_.parameters().units().invalidate();
}

// The part of the step's data that the losses point to: the micro-batches whose loss is not finite,
// else the one with the largest loss. Each rank can name the source of only its own data.
std::string StepUpdate::suspects(const Data& data) const {
  constexpr std::size_t kMostNamed = 4;
  const RankLink& ranks = parts_.ranks();
  const offload::SumOrder& order = parts_.plan().sum_order;
  const std::vector<double> own = data.losses();
  const std::vector<double> means = value_or_throw(all_of_step(ranks, order, own));
  std::vector<std::size_t> accused;
  std::size_t largest = 0;
  for (std::size_t m = 0; m < means.size(); ++m) {
    if (!std::isfinite(means[m])) accused.push_back(m);
    if (means[m] > means[largest]) largest = m;
  }
  std::string text;
  if (accused.empty()) {
    accused = {largest};
    text = means.size() > 1 ? "every micro-batch has a finite loss; the largest is " : "";
  }
  const std::size_t named = std::min(accused.size(), kMostNamed);
  // This rank's micro-batches, by number in the step.
  std::map<std::size_t, std::size_t> own_numbers;
  for (std::size_t m = 0; m < own.size(); ++m) {
    const auto number = order.number_in_step(static_cast<std::int64_t>(m), ranks.part.rank);
    own_numbers.emplace(static_cast<std::size_t>(number), m);
  }
  std::string mine;
  for (std::size_t i = 0; i < named; ++i) {
    const std::size_t m = accused[i];
    const auto found = own_numbers.find(m);
    if (found == own_numbers.end()) continue;
    mine += (mine.empty() ? "" : "; ") + ("micro-batch " + std::to_string(m + 1)) + " of " +
            std::to_string(means.size()) + ", loss " + std::to_string(means[m]);
    if (data.source_of) mine += ", " + data.source_of(found->second);
  }
  const char* separator = "";
  for (const std::string& of_rank : value_or_throw(ranks.link->all_gather_text(mine))) {
    if (of_rank.empty()) continue;
    text += separator + of_rank;
    separator = "; ";
  }
  if (accused.size() > kMostNamed)
    text += "; and " + std::to_string(accused.size() - kMostNamed) + " more micro-batches";
  return text;
}

}  // namespace sluice::engine
