// StepBatch: the tokens of one step or evaluation: for each micro-batch an int64 tensor [B, T] on
// the device that computes. Targets are the inputs moved by one. What it came from outlives it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace sluice::engine {

struct StepBatch {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> targets;
  // Where a micro-batch's samples lie in the user's data, as text; empty: they are not from user
  // data.
  std::function<std::string(std::size_t micro_batch)> source_of;
};

}  // namespace sluice::engine
