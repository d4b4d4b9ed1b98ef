#include "engine/plan/longest_sequence.h"

#include <algorithm>

#include "engine/families/families.h"
#include "offload/planner/placement_planner.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kShortest = 64;
constexpr std::int64_t kLongest = std::int64_t{1} << 22;
constexpr std::int64_t kSteps = 128;  // between a length and its double

Result<bool> fits(const PlanSubject& subject, const PlacedRun& placed, std::int64_t tokens) {
  config::Config config = subject.config;
  config.batch.micro = 1;
  config.batch.accumulation = 1;
  config.run.lanes = subject.ranks.world;
  config.run.rounds = 1;
  config.data.sequence_tokens = tokens;
  config.model.context_tokens = std::max(config.model.context_tokens, tokens);
  StepChoice choice = StepChoice::of(placed.input);
  choice.wave_micro_batches = 1;
  choice.moves_gradients |= may_move_gradients(subject, config);
  SLUICE_ASSIGN_OR_RETURN(
      const offload::PlannerInput input,
      input_of(subject, config, placed.machine.report, placed.input.budget, choice));
  return offload::leanest_placement(input).missing.total() == 0;
}

}  // namespace

// From the longest down, because a sequence that is cut into pieces (row_pieces.h) can need less
// than a shorter one that is not.
Result<std::int64_t> longest_sequence(const PlanSubject& subject, const PlacedRun& placed) {
  const config::Model& model = subject.config.model;
  const std::int64_t most = has_learned_positions(model.shape()) ? model.context_tokens : kLongest;
  std::int64_t tokens = most;
  for (;; tokens /= 2) {
    if (tokens < std::min(kShortest, most)) return 0;
    SLUICE_ASSIGN_OR_RETURN(const bool all, fits(subject, placed, tokens));
    if (all) break;
  }
  if (tokens == most) return tokens;
  const std::int64_t least_step = std::max<std::int64_t>(tokens / kSteps, 1);
  for (std::int64_t step = tokens / 2; step >= least_step; step /= 2) {
    SLUICE_ASSIGN_OR_RETURN(const bool more, fits(subject, placed, tokens + step));
    if (more) tokens += step;
  }
  return tokens;
}

}  // namespace sluice::engine
