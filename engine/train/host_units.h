// HostUnits: tells the optimizer where a unit's host parameters and gradients are. It holds a lease
// of the parameters while the optimizer works on them, so nobody reads them half updated.
#pragma once

#include <vector>

#include "engine/train/gradient_sink.h"
#include "offload/param_offloader.h"
#include "offload/unit_source.h"

namespace sluice::engine {

class HostUnits final : public offload::UnitSource {
 public:
  using Access = offload::ParamOffloader::Access;

  // What the optimizer does with the parameters: updates them in a step, makes them in restore(),
  // reads them in snapshot(). `gradients` is needed for kUpdate. Both must outlive it.
  HostUnits(offload::ParamOffloader& params, const GradientSink* gradients, Access access, int units)
      : params_(params),
        gradients_(gradients),
        access_(access),
        leases_(static_cast<std::size_t>(units)) {}

  Result<offload::UnitArrays> begin(int unit) override {
    auto& lease = leases_[static_cast<std::size_t>(unit)];
    SLUICE_ASSIGN_OR_RETURN(lease, params_.acquire(unit, access_));
    offload::UnitArrays arrays;
    arrays.param = lease.bytes().data();
    if (gradients_ != nullptr) arrays.grad = gradients_->host_gradient(unit);
    return arrays;
  }
  void ready(int unit) noexcept override { leases_[static_cast<std::size_t>(unit)].release(); }

 private:
  offload::ParamOffloader& params_;
  const GradientSink* const gradients_;
  const Access access_;
  std::vector<offload::ParamOffloader::Lease> leases_;  // by unit
};

}  // namespace sluice::engine
