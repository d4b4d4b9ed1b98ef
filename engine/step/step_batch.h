// StepBatch: the tokens of one step or evaluation. Each micro-batch has int64 tensors [B, T] on the
// device that computes. Targets are the inputs shifted by one, or kIgnoredTarget (cuda_kernels.h)
// where nothing is to be learned. A step's loss is the mean over all other targets, however they
// are divided among micro-batches. The source of the batch must outlive it.
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
  // For each micro-batch, the number of targets that are not ignored; empty: none is ignored.
  std::vector<std::int64_t> counted_targets;
  // For each micro-batch, where the documents in its rows begin; empty: each row is one document.
  std::vector<Documents> documents;
  // Describes where a micro-batch's samples are in the user's data; empty: they do not come from
  // user data.
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
