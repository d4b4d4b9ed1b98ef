// Forward-only passes and the loss they end with. A pass has no dropout and keeps nothing. It runs
// all micro-batches of the batch through a unit before the next unit, so parameters are fetched
// once, however many micro-batches there are.
//
// Memory:  a unit's input for each micro-batch, and the working memory of one micro-batch.
// Threads: the training thread.
// Errors:  thrown: c10::Error or TrainError.
#pragma once

#include <vector>

#include "engine/model/model.h"
#include "engine/runtime/step_engine.h"
#include "engine/step/step_batch.h"

namespace sluice::engine {

// Runs the program of a forward pass. It expects a similar pass to follow, whose first parameters
// are read while this one ends.
void run_forward(Resources& parts, Passes& passes);

struct LossSum {
  double sum = 0;
  double tokens = 0;
  double mean() const { return sum / tokens; }
  LossSum& operator+=(const LossSum& other) {
    sum += other.sum;
    tokens += other.tokens;
    return *this;
  }
};

// The loss sum of each micro-batch. The caller adds them one by one, so that the total does not
// depend on how many are evaluated together. The parameters must be up to date: no update may be in
// progress. An empty batch fetches parameters all the same, because other ranks may have
// micro-batches.
std::vector<LossSum> evaluate_batch(Resources& parts, const Model& model, const StepBatch& batch);
// The loss of each target instead: for each micro-batch fp32 [B, T] on the host, 0 for ignored
// targets.
std::vector<at::Tensor> evaluate_tokens(Resources& parts, const Model& model,
                                        const StepBatch& batch);

}  // namespace sluice::engine
