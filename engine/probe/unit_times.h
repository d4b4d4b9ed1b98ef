// UnitTimes: the seconds of one micro-batch through one unit of each kind, as the planner needs
// them. Measured by unit_timer.h; this estimate is for a device that is not there.
//
// Without LibTorch.
#pragma once

#include <cstdint>

#include "engine/model/gpt_costs.h"
#include "engine/model/gpt_shape.h"

namespace sluice::engine {

struct UnitSeconds {
  double forward_s = 0;
  double recompute_s = 0;  // what backward adds where activations were not saved
  double backward_s = 0;
};

struct UnitTimes {
  UnitSeconds embedding;
  UnitSeconds block;
  // forward_s: the loss alone, as in evaluation. Training makes forward and backward in one pass,
  // which takes the sum of the two.
  UnitSeconds head;
};

// An assumption, for want of a measurement: the share of the rate of large plain products that a
// model's block and head reach, with norms, attention and gradients in fp32 counted in.
inline constexpr double kMatmulEfficiency = 0.5;

struct EstimateRates {
  double matmul_flops_per_s = 0;
  double copy_bytes_per_s = 0;  // of the device's memory, read plus written
  double efficiency = kMatmulEfficiency;
};

// From operations for block and head, from bytes for the embedding. The rates must be above 0.
UnitTimes estimate_units(const GptShape& shape, std::int64_t padded_vocab, const PassShape& pass,
                         const EstimateRates& rates);

}  // namespace sluice::engine
