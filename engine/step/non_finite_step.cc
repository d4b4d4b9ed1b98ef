// Trainer: a step whose gradient is not finite. Which data it points to.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/step/trainer.h"

namespace sluice::engine {

// The part of the step's data that the losses point to: the micro-batches whose loss is not finite,
// else the one with the largest. Each rank knows where its own are from.
std::string Trainer::suspects(const StepBatch& batch) const {
  constexpr std::size_t kMostNamed = 4;
  std::vector<double> own;
  own.reserve(losses_.size());
  for (std::size_t m = 0; m < losses_.size(); ++m)
    own.push_back(losses_[m].item<double>() / std::max(batch.count(m), 1.0));
  const std::vector<double> means = must(all_of_step(options_.ranks, options_.order, own));
  std::vector<std::size_t> accused;
  std::size_t largest = 0;
  for (std::size_t m = 0; m < means.size(); ++m) {
    if (!std::isfinite(means[m])) accused.push_back(m);
    if (means[m] > means[largest]) largest = m;
  }
  std::string text;
  if (accused.empty()) {
    accused = {largest};
    text = means.size() > 1 ? "every micro-batch has a finite loss, and the largest has " : "";
  }
  const std::size_t named = std::min(accused.size(), kMostNamed);
  // Of this rank, by their numbers in the step.
  std::map<std::size_t, std::size_t> own_numbers;
  for (std::size_t m = 0; m < own.size(); ++m)
    own_numbers.emplace(static_cast<std::size_t>(number_in_step(m)), m);
  std::string mine;
  for (std::size_t i = 0; i < named; ++i) {
    const std::size_t m = accused[i];
    const auto found = own_numbers.find(m);
    if (found == own_numbers.end()) continue;
    mine += (mine.empty() ? "" : "; ") + ("micro-batch " + std::to_string(m + 1)) + " of " +
            std::to_string(means.size()) + ", loss " + std::to_string(means[m]);
    if (batch.source_of) mine += ", " + batch.source_of(found->second);
  }
  std::vector<std::string> of_ranks = {mine};
  if (!options_.ranks.is_alone()) of_ranks = must(options_.ranks.link->all_gather_text(mine));
  const char* separator = "";
  for (const std::string& of_rank : of_ranks) {
    if (of_rank.empty()) continue;
    text += separator + of_rank;
    separator = "; ";
  }
  if (accused.size() > kMostNamed)
    text += "; and " + std::to_string(accused.size() - kMostNamed) + " more micro-batches";
  return text;
}

void Trainer::handle_overflow(const StepBatch& batch, const GradientTotals& totals,
                              StepOutcome& outcome) {
  outcome.warning = skip_step(options_.rules,
                              {.unit = parts_.model->layout(*totals.first_not_finite).name,
                               .suspects = [&] { return suspects(batch); }},
                              state_);
  outcome.skipped = true;
}

}  // namespace sluice::engine
