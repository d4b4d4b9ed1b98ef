// UnitTimes: the seconds of one micro-batch through one unit of each kind, for the planner.
// unit_timer.h measures them; estimate_units() is for a device that is not present.
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
  double recompute_s = 0;  // what backward adds if activations were not saved
  double backward_s = 0;

  UnitSeconds& operator+=(const UnitSeconds& other) {
    forward_s += other.forward_s;
    recompute_s += other.recompute_s;
    backward_s += other.backward_s;
    return *this;
  }
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
  double product_flops_per_s = 0;    // sustained, for products with parameters
  double attention_flops_per_s = 0;  // heads of 128, long sequences; 0: the products' rate
  double kernel_bytes_per_s = 0;     // memory-bound kernels, read plus written
  double gap_s = 0;                  // between two kernels
  double fp8_flops_per_s = 0;        // products in fp8; 0: as the other products
};

// What is added to times in 16 bits for UnitKind::fp8_work(): the casts, and the time that products
// save, which is negative.
UnitSeconds fp8_seconds(const UnitKind& kind, const PassShape& pass, const EstimateRates& rates);

// The sum of the times of products, attention and memory-bound kernels. All rates except
// attention's must be above 0.
UnitTimes estimate_units(const ModelLayout& model, const PassShape& pass,
                         const EstimateRates& rates);

}  // namespace sluice::engine
