// GradientSink: where a unit's gradient is accumulated, and how it gets from there to the
// optimizer.
//
// Backward adds a unit's gradient over all micro-batches in fp32, in a buffer on the device that
// computes. finish() casts it to the 16-bit gradient type and takes the sum of squares of the cast
// values, in one pass, into host memory of the unit's own (fp32 mode: without the cast). It
// stays there until the unit's update has consumed it, so no gradient touches the disk. What the
// GPU updates stays there instead.
//
// The gradient of a parameter that others borrow is begun by the last of them and finished by its
// own unit: units that lend stay open meanwhile; of the others, one is open at a time. A unit of
// which nothing is trained is opened and finished like the others, and has no views.
//
// Memory:  host_bytes() of pinned host memory; on the device a buffer for each unit that lends, and
//          one for the largest of the others.
// Threads: the one that trains; host_gradient() from any.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "aio/executor.h"
#include "aio/page_memory.h"
#include "aio/pinned_pool.h"
#include "aio/result.h"
#include "engine/model/model_layout.h"
#include "engine/model/unit_views.h"
#include "offload/adamw/adamw_arrays.h"
#include "offload/adamw/isa.h"
#include "offload/adamw/square_sum.h"
#include "offload/unit_residency.h"

namespace sluice::engine {

struct GradientTotals {
  double square_sum = 0;  // over all units, in ascending order
  bool finite = true;
  // The unit at which the gradient went wrong: the first one in the order of backward.
  std::optional<int> first_not_finite;
};

class GradientSink {
 public:
  virtual ~GradientSink() = default;

  // The unit's accumulators, zeroed unless it is open; but those that are products
  // (ParameterSpec::gradient_is_product) hold arbitrary values, for the first pass to overwrite.
  virtual const UnitViews& open(int unit) = 0;
  // Its gradient is complete. The update of the previous step must have consumed the last one.
  virtual Status finish(int unit) = 0;
  // Waits until every unit's gradient is where the optimizer wants it. The only wait of a step.
  virtual Result<GradientTotals> totals() = 0;

  // Null where the device updates all of the unit.
  virtual const void* host_gradient(int unit) const = 0;
  // Where the gradient of a unit with state on the device stays, of all its elements; else null.
  virtual const void* device_gradient(int /*unit*/) const { return nullptr; }
  // Copies it once everything enqueued is done; for inspection.
  virtual Status read_device(int /*unit*/, std::span<std::byte> /*to*/) const {
    return Error(ErrorCode::kUnsupported, "no gradient stays on this device");
  }
  virtual std::uint64_t host_bytes() const = 0;
  virtual std::uint64_t copied_bytes() const { return 0; }
};

// Opens the unit, and those whose parameters it borrows, for views of all of their accumulators. In
// a frozen model nothing that is lent has a gradient.
inline UnitViews open_with_lenders(GradientSink& sink, const ModelLayout& model, int unit) {
  std::vector<const UnitViews*> of_lenders;
  if (!model.has_frozen())
    for (const int lender : model.lenders(unit)) of_lenders.push_back(&sink.open(lender));
  return gradient_views(model, unit, sink.open(unit), of_lenders);
}

class CpuGradientSink final : public GradientSink {
 public:
  struct Options {
    offload::GradType type = offload::GradType::kBf16;
    offload::Isa isa = offload::Isa::kScalar;
    bool huge_pages = true;
  };
  // Model and executor must outlive it; during finish() the executor is exclusive to it.
  static Result<std::unique_ptr<CpuGradientSink>> create(const ModelLayout& model,
                                                         aio::Executor& executor,
                                                         const Options& options);
  // Takes planned_cpu_sink_bytes() (engine/budget/cpu_sink_plan.h) of the host.

  const UnitViews& open(int unit) override;
  Status finish(int unit) override;
  Result<GradientTotals> totals() override;
  const void* host_gradient(int unit) const override;
  std::uint64_t host_bytes() const override { return host_.size_bytes(); }

 private:
  struct Unit {
    UnitViews accumulators;
    float* first = nullptr;          // of the accumulators
    std::uint64_t offset_bytes = 0;  // in host_
    std::uint64_t elements = 0;
    std::vector<offload::ElementRange> zeroed;
    std::unique_ptr<offload::SquareSum> sum;
    bool lends = false;
    bool is_open = false;
    bool finished = false;
  };

  CpuGradientSink(const ModelLayout& model, aio::Executor& executor, const Options& options,
                  aio::PageMemory host, aio::PageMemory accumulators);
  Unit& at(int unit) { return units_[static_cast<std::size_t>(unit)]; }

  aio::Executor& executor_;
  const Options options_;
  aio::PageMemory host_;
  aio::PageMemory accumulators_;
  std::vector<Unit> units_;
};

}  // namespace sluice::engine
