// The length of a run: run.steps, or run.epochs once the length of an epoch is known.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/config/derive.h"

namespace sluice::config {
namespace {

constexpr std::string_view kSteps = "run.steps";
constexpr std::string_view kEpochs = "run.epochs";

// Whole steps that cover the epochs. A product of fractions may exceed a whole number by a rounding
// error: 0.1 of 30 sequences is 3.
std::int64_t steps_in(double epochs, std::uint64_t samples, std::int64_t samples_of_a_step) {
  const double steps =
      epochs * static_cast<double>(samples) / static_cast<double>(samples_of_a_step);
  constexpr double kRounding = 1e-12;
  constexpr double kMost = 1e15;
  return std::max<std::int64_t>(
      1, static_cast<std::int64_t>(std::ceil(std::min(steps * (1 - kRounding), kMost))));
}

// The later source decides; a single source may give only one of the two.
bool keep_one(Derivation& derivation) {
  const int steps = derivation.rank(kSteps);
  const int epochs = derivation.rank(kEpochs);
  if (steps < 0 || epochs < 0) return true;
  if (steps == epochs) {
    derivation.reject(
        "run.steps and run.epochs both set the length of the run: leave one of them out");
    return false;
  }
  if (steps > epochs) {
    derivation.config.run.epochs.reset();
    derivation.drop(kEpochs, "a later source gives run.steps");
  } else {
    derivation.drop(kSteps, "a later source gives run.epochs");
  }
  return true;
}

}  // namespace

void derive_run_length(Derivation& derivation) {
  if (!keep_one(derivation)) return;
  Run& run = derivation.config.run;
  if (!run.epochs) return;
  const std::string epochs = "run.epochs " + short_text(Json(*run.epochs));
  if (!derivation.facts.samples_per_epoch) {
    derivation.missing_facts.samples_per_epoch = true;
    run.steps = kOpenSteps;
    return derivation.note(kSteps, epochs + ", when the training data is opened");
  }
  const std::uint64_t samples = *derivation.facts.samples_per_epoch;
  const std::int64_t samples_of_a_step = std::max<std::int64_t>(derivation.config.batch.train, 1);
  run.steps = steps_in(*run.epochs, samples, samples_of_a_step);
  derivation.note(kSteps, epochs + " x " + std::to_string(samples) +
                              " sequences / train_batch_size " + std::to_string(samples_of_a_step));
}

}  // namespace sluice::config
