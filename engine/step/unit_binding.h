// UnitBinding: tells the optimizer where a unit's parameters and gradients are. It holds a lease of
// them on the host while the optimizer works on the unit, so that no reader sees a partial update.
// It also reports when each update ran and how long it took, and can hash the results.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "aio/clock.h"
#include "engine/model/model_layout.h"
#include "engine/observe/step_metrics.h"
#include "engine/observe/trace_log.h"
#include "engine/step/gradient_sink.h"
#include "engine/step/unit_parameters.h"
#include "offload/params/param_offloader.h"
#include "offload/state/unit_source.h"
#include "offload/unit_residency.h"
#include "swap/chunk_hash.h"

namespace sluice::engine {

class UnitBinding final : public offload::UnitSource {
 public:
  using Access = offload::ParamOffloader::Access;
  // Bytes per element, for hashing.
  struct Widths {
    std::uint64_t param_bytes = 0;
    std::uint64_t grad_bytes = 0;
  };

  // All must outlive it.
  struct Parts {
    offload::ParamOffloader* params = nullptr;
    const UnitParameters* device = nullptr;
    GradientSink* gradients = nullptr;  // only for kUpdate
  };
  // `access`: what the optimizer does with the parameters. A step updates them, restore() writes
  // them, snapshot() reads them.
  UnitBinding(const Parts& parts, Access access, const ModelLayout& model,
              TraceLog* trace = nullptr)
      : parts_(parts),
        access_(access),
        model_(model),
        trace_(trace),
        leases_(static_cast<std::size_t>(model.units())),
        gradient_leases_(leases_.size()) {}

  Result<offload::UnitArrays> begin(int unit) override {
    begin_ns_ = clock_.now_ns();
    if (unit == 0) step_begin_ns_ = begin_ns_;
    offload::UnitArrays arrays;
    if (model_.layout(unit).elements > 0 && parts_.params->on_host(unit)) {
      auto& lease = leases_[static_cast<std::size_t>(unit)];
      SLUICE_ASSIGN_OR_RETURN(lease, parts_.params->acquire(unit, access_));
      arrays.param = lease.bytes().data();
    }
    arrays.gpu_param = parts_.device->shard_place(unit);
    if (parts_.gradients != nullptr) {
      auto& gradient = gradient_leases_[static_cast<std::size_t>(unit)];
      SLUICE_ASSIGN_OR_RETURN(gradient, parts_.gradients->lease(unit));
      arrays.grad = gradient ? gradient.bytes().data() : parts_.gradients->host_gradient(unit);
      arrays.gpu_grad = parts_.gradients->device_gradient(unit);
    }
    arrays_ = arrays;
    return arrays;
  }
  void ready(int unit) noexcept override {
    if (hashes_by_itself_ && arrays_.gpu_grad == nullptr) hash(unit);
    leases_[static_cast<std::size_t>(unit)].release();
    gradient_leases_[static_cast<std::size_t>(unit)].release();
    const std::int64_t now_ns = clock_.now_ns();
    if (trace_ != nullptr) {
      trace_->add({.track = TraceTrack::kAdamw,
                   .name = model_.layout(unit).name.c_str(),
                   .begin_ns = begin_ns_,
                   .end_ns = now_ns,
                   .phase = "adamw"});
    }
    if (unit == model_.head()) last_step_ns_.store(now_ns - step_begin_ns_);
  }

  // Takes effect with the next step. hashes() returns the last step's hashes once all of its units
  // are ready.
  // `by_itself`: ready() hashes each unit; false if the parameters are sharded.
  void hash_units(const Widths& widths, bool by_itself) {
    widths_ = widths;
    hashes_by_itself_ = by_itself;
    hashes_.resize(leases_.size());
    for (std::size_t unit = 0; unit < hashes_.size(); ++unit)
      hashes_[unit].unit = model_.layout(static_cast<int>(unit)).name;
  }
  bool hashes_by_itself() const { return hashes_by_itself_; }
  const std::vector<UnitHashes>& hashes() const { return hashes_; }
  // Hashes the units that the device updates; requires that all units are ready. `residency` is the
  // run's.
  Status hash_device_units(const offload::UnitResidency& residency);
  // Replaces the hashing above if there are several ranks; collective. Hashes whole units, whose
  // shards the first rank gathers.
  Status hash_shards(const RankLink& ranks, const offload::UnitResidency& residency);

  // Duration of the last completed update, from the first unit's begin() to the last unit's
  // ready(). Any thread.
  std::int64_t last_step_ns() const { return last_step_ns_.load(); }

 private:
  // This rank's shard of the unit's parameters, as the next forward will use them, and its
  // gradient.
  Result<std::vector<std::byte>> shard_parameters(int unit, std::uint64_t elements,
                                                  const offload::UnitResidency& residency);
  Result<std::vector<std::byte>> shard_gradient(int unit, std::uint64_t elements);
  void hash(int unit) noexcept {
    const std::uint64_t elements = model_.layout(unit).elements;
    if (elements == 0) return;
    const auto bytes = [&](const void* first, std::uint64_t width) {
      return std::span(static_cast<const std::byte*>(first), elements * width);
    };
    UnitHashes& hashes = hashes_[static_cast<std::size_t>(unit)];
    hashes.parameters = swap::plain_hash(bytes(arrays_.param, widths_.param_bytes));
    hashes.gradient = swap::plain_hash(bytes(arrays_.grad, widths_.grad_bytes));
  }

  const Parts parts_;
  const Access access_;
  const ModelLayout& model_;
  TraceLog* const trace_;
  const SteadyClock clock_{};
  Widths widths_;
  std::vector<UnitHashes> hashes_;  // by unit; empty: disabled. The working thread's, like the next
  bool hashes_by_itself_ = false;
  offload::UnitArrays arrays_;  // the unit being worked on
  std::int64_t begin_ns_ = 0;
  std::int64_t step_begin_ns_ = 0;
  std::atomic<std::int64_t> last_step_ns_{0};
  std::vector<offload::ParamOffloader::Lease> leases_;  // by unit, like the next
  std::vector<offload::ParamOffloader::Lease> gradient_leases_;
};

}  // namespace sluice::engine
