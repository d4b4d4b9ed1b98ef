// UnitTimes: the seconds of one micro-batch through one unit of each kind, as the planner needs
// them. Measured by unit_timer.h; the estimate here is for a device that is not present.
//
// Without LibTorch.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/model/model_layout.h"

namespace sluice::engine {

struct UnitSeconds {
  double forward_s = 0;
  double recompute_s = 0;  // what backward adds where activations were not saved
  double backward_s = 0;
};

// For a head, forward_s is the loss alone, as in evaluation. Training does forward and backward in
// one pass, which takes the sum of the two.
struct UnitTimes {
  struct OfKind {
    std::string kind;
    UnitSeconds seconds;
  };
  std::vector<OfKind> kinds;  // in the model's order

  UnitTimes() = default;
  explicit UnitTimes(const ModelLayout& model);  // all zero
  // The kind must exist.
  const UnitSeconds& of(const UnitKind& kind) const { return of(kind.name()); }
  const UnitSeconds& of(std::string_view kind) const;
};

struct EstimateRates {
  double product_flops_per_s = 0;    // of products with parameters, as long as a step takes
  double attention_flops_per_s = 0;  // of heads of 128 in long sequences; 0: as those products
  double kernel_bytes_per_s = 0;     // of kernels that memory holds, read plus written
  double gap_s = 0;                  // between two kernels
};

// The sum of what products, attention and kernels that memory holds take. The rates must be above
// 0, but for attention's.
UnitTimes estimate_units(const ModelLayout& model, const PassShape& pass,
                         const EstimateRates& rates);

}  // namespace sluice::engine
