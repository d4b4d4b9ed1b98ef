// EvaluationHistory: the lowest validation loss of a run so far, and whether the run stops early.
//
// An evaluation is an improvement if its loss is lower than the lowest so far by more than
// min_delta, as in transformers' EarlyStoppingCallback. The first finite loss always is one; a loss
// that is not finite never is.
//
// Threads: one.
#pragma once

#include <cstdint>

#include "engine/checkpoint/checkpoint_state.h"
#include "engine/config/config.h"

namespace sluice::engine {

class EvaluationHistory {
 public:
  // `stored`: of the run's evaluations before a resume.
  EvaluationHistory(const config::EarlyStopping& rules, const StoredEvaluations& stored)
      : rules_(rules), made_(stored) {}

  // Returns whether the loss is the lowest so far.
  bool add(std::int64_t step, double loss);
  bool stops() const { return rules_.patience > 0 && made_.without_improvement >= rules_.patience; }
  const StoredEvaluations& made() const { return made_; }

 private:
  config::EarlyStopping rules_;
  StoredEvaluations made_;
};

}  // namespace sluice::engine
