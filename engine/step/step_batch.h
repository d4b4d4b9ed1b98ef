// StepBatch: the tokens of one step or evaluation: for each micro-batch int64 tensors [B, T] on the
// device that computes. Targets are the inputs moved by one, or kIgnoredTarget (cross_entropy.h)
// where nothing is to be learned. The loss of a step is the mean over all of its other targets,
// however they are spread over micro-batches. What it came from outlives it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/model/documents.h"

namespace sluice::engine {

struct StepBatch {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> targets;
  // Of each micro-batch, the targets that are not ignored; empty: none is.
  std::vector<std::int64_t> counted_targets;
  // Of each micro-batch, where the texts in its rows begin; empty: each row is one.
  std::vector<Documents> documents;
  // Where a micro-batch's samples lie in the user's data, as text; empty: they are not from user
  // data.
  std::function<std::string(std::size_t micro_batch)> source_of;

  double count(std::size_t micro_batch) const {
    return static_cast<double>(counted_targets.empty() ? targets[micro_batch].numel()
                                                       : counted_targets[micro_batch]);
  }
  const Documents* documents_of(std::size_t micro_batch) const {
    return documents.empty() ? nullptr : &documents[micro_batch];
  }
};

}  // namespace sluice::engine
