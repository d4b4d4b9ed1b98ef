// HostUnits: tells the optimizer where a unit's host parameters and gradients are. It holds a lease
// of the parameters while the optimizer works on them, so nobody reads them half updated. It also
// tells how long that took, and when.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "aio/clock.h"
#include "engine/model/gpt_model.h"
#include "engine/observe/trace_log.h"
#include "engine/train/gradient_sink.h"
#include "offload/param_offloader.h"
#include "offload/unit_source.h"

namespace sluice::engine {

class HostUnits final : public offload::UnitSource {
 public:
  using Access = offload::ParamOffloader::Access;

  // What the optimizer does with the parameters: updates them in a step, makes them in restore(),
  // reads them in snapshot(). `gradients` is needed for kUpdate. Both must outlive it.
  HostUnits(offload::ParamOffloader& params, const GradientSink* gradients, Access access,
            const GptModel& model, TraceLog* trace = nullptr)
      : params_(params),
        gradients_(gradients),
        access_(access),
        model_(model),
        trace_(trace),
        leases_(static_cast<std::size_t>(model.units())) {}

  Result<offload::UnitArrays> begin(int unit) override {
    begin_ns_ = clock_.now_ns();
    if (unit == 0) step_begin_ns_ = begin_ns_;
    auto& lease = leases_[static_cast<std::size_t>(unit)];
    SLUICE_ASSIGN_OR_RETURN(lease, params_.acquire(unit, access_));
    offload::UnitArrays arrays;
    arrays.param = lease.bytes().data();
    if (gradients_ != nullptr) arrays.grad = gradients_->host_gradient(unit);
    return arrays;
  }
  void ready(int unit) noexcept override {
    leases_[static_cast<std::size_t>(unit)].release();
    const std::int64_t now_ns = clock_.now_ns();
    if (trace_ != nullptr) {
      trace_->add({.track = TraceTrack::kAdamw,
                   .name = model_.layout(unit).name.c_str(),
                   .begin_ns = begin_ns_,
                   .end_ns = now_ns});
    }
    if (unit == model_.head_index()) last_step_ns_.store(now_ns - step_begin_ns_);
  }

  // Of the last step that is done, from its first unit's begin to its last one's ready. Any thread.
  std::int64_t last_step_ns() const { return last_step_ns_.load(); }

 private:
  offload::ParamOffloader& params_;
  const GradientSink* const gradients_;
  const Access access_;
  const GptModel& model_;
  TraceLog* const trace_;
  const SteadyClock clock_{};
  std::int64_t begin_ns_ = 0;  // the working thread's, as the next
  std::int64_t step_begin_ns_ = 0;
  std::atomic<std::int64_t> last_step_ns_{0};
  std::vector<offload::ParamOffloader::Lease> leases_;  // by unit
};

}  // namespace sluice::engine
