// StepBatch: the tokens of one step or evaluation, of each micro-batch an int64 tensor [B, T] on
// the device that computes. Targets are the inputs moved by one.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace sluice::engine {

struct StepBatch {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> targets;
};

}  // namespace sluice::engine
