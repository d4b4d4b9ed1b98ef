// Passes that only compute forward, and the loss that they end with: a forward pass without dropout
// that keeps nothing, unit by unit with all micro-batches of the batch, so parameters are fetched
// once, however many micro-batches there are.
//
// Memory:  a unit's input for each micro-batch, and what one micro-batch works with.
// Threads: the one that trains.
// Errors:  as c10::Error or TrainError.
#pragma once

#include <vector>

#include "engine/model/model.h"
#include "engine/runtime/step_engine.h"
#include "engine/step/step_batch.h"

namespace sluice::engine {

// Runs the program of a pass, as one of many of its kind: the next one's parameters are read while
// this one ends.
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

// Of each micro-batch of the batch, to be added one by one: so the sum does not depend on how many
// are evaluated together. The parameters must be there: no update may be in progress. With none,
// parameters are fetched all the same, as other ranks may have some.
std::vector<LossSum> evaluate_batch(Resources& parts, const Model& model, const StepBatch& batch);
// The loss of each target instead: for each micro-batch fp32 [B, T] on the host, 0 where it is
// ignored.
std::vector<at::Tensor> evaluate_tokens(Resources& parts, const Model& model,
                                        const StepBatch& batch);

}  // namespace sluice::engine
