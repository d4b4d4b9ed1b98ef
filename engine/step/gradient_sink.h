// GradientSink: where a unit's gradient is accumulated, and how it gets from there to the
// optimizer.
//
// Backward adds a unit's gradient over all micro-batches in fp32, in a buffer on the device that
// computes. finish() casts it to the 16-bit gradient type and takes the sum of squares of the cast
// values, in one pass, into host memory of the unit's own (fp32 mode: without the cast). It
// stays there until the unit's update has consumed it, so no gradient touches the disk, unless it
// is asked to (nvme_gradient_sink.h). What the GPU updates stays there instead.
//
// Additions follow offload::SumOrder: a unit has as many sums at a time as that says, and a
// micro-batch is added to the last of them.
//
// Where a step has several waves, keep() closes a unit in all but the last one, and the sums are
// there again when open() comes: on the device for units whose state is all there, and in the
// unit's place in host memory for others, fetched ahead and returned beside what is computed. It is
// the fp32 sums themselves that come and go: sums of waves, added on the host, would be another
// order.
//
// One unit is open at a time. What it adds up for parameters that it borrows has sums of its own,
// so that the order of additions does not depend on which unit's backward comes between which
// micro-batches: the lender's finish() adds them to its gradient, in forward order of the
// borrowers.
// A unit of which nothing is trained is opened and finished like the others, and has no views.
//
// Memory:  host_bytes() of pinned host memory; on the device sums for the largest unit, and for
//          each unit that borrows.
// Threads: the one that trains; host_gradient() from any.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
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
#include "engine/step/rank_reduction.h"
#include "offload/adamw/adamw_arrays.h"
#include "offload/adamw/isa.h"
#include "offload/adamw/square_sum.h"
#include "offload/params/param_offloader.h"
#include "offload/sum_order.h"
#include "offload/unit_residency.h"

namespace sluice::engine {

struct GradientTotals {
  double square_sum = 0;  // over all units, in ascending order
  bool finite = true;
  // The unit at which the gradient went wrong: the first one in the order of backward.
  std::optional<int> first_not_finite;
};

// `sums`: by unit.
GradientTotals gradient_totals(const ModelLayout& model,
                               const std::vector<const offload::SquareSum*>& sums);

// A unit's sums on the host, of UnitLayout::slot_elements; none where it has no parameters.
UnitViews fp32_views(const UnitLayout& layout, float* memory);

class GradientSink {
 public:
  static constexpr int kSumsAhead = 2;  // that prefetch() is worth being called for

  // Where a pass adds the gradient of a micro-batch.
  struct Target {
    const UnitViews& sums;    // as gradient_views()
    bool overwrites = false;  // PassContext::overwrites: those that are products hold any values
  };

  GradientSink(const offload::SumOrder& order, int units)
      : order_(order), added_(static_cast<std::size_t>(units)), begun_(added_) {}
  virtual ~GradientSink() = default;

  // For the micro-batches of a wave: each gets its target(), and is added() once its pass is
  // enqueued, in ascending order over the step.
  virtual Status open(int unit) = 0;
  Target target(int unit, std::int64_t micro_batch);
  // More of the same micro-batch, after its target() and before it was added(): the sums go on from
  // where they are. The unit was kept in between.
  const UnitViews& target_again(int unit, std::int64_t micro_batch) {
    return sums(unit, order_.level(micro_batch));
  }
  void added(int unit, std::int64_t micro_batch);
  // More will be added to it in the next wave. The update of the previous step must have consumed
  // the last gradient.
  virtual Status keep(int unit) = 0;
  // A kept unit will be opened soon. Never waits.
  virtual Status prefetch(int /*unit*/) { return {}; }
  // Its gradient is complete. The update of the previous step must have consumed the last one.
  virtual Status finish(int unit) = 0;
  // What was added since the last step counts for nothing; of units in any state. False: this sink
  // has to be told unit by unit.
  virtual bool forget() { return false; }
  // Waits until every unit's gradient is where the optimizer wants it. The only wait of a step.
  virtual Result<GradientTotals> totals() = 0;

  // Null where the device updates all of the unit, and where lease() gives it.
  virtual const void* host_gradient(int unit) const = 0;
  // Of gradients on NVMe: one that is complete, while the lease lasts. May wait for the drive. From
  // any thread.
  virtual Result<offload::ParamOffloader::Lease> lease(int /*unit*/) {
    return offload::ParamOffloader::Lease();
  }
  // Where the gradient of a unit with state on the device stays, of all its elements; else null.
  virtual const void* device_gradient(int /*unit*/) const { return nullptr; }
  // Copies it once everything enqueued is done; for inspection.
  virtual Status read_device(int /*unit*/, std::span<std::byte> /*to*/) const {
    return Error(ErrorCode::kUnsupported, "no gradient stays on this device");
  }
  virtual std::uint64_t host_bytes() const = 0;
  virtual std::uint64_t copied_bytes() const { return 0; }   // to the host so far
  virtual std::uint64_t fetched_bytes() const { return 0; }  // from it, of sums

 protected:
  const offload::SumOrder& order() const { return order_; }
  // Of an open unit, after the micro-batches that were added, with the one that is being added.
  int open_sums(int unit) const {
    const auto u = static_cast<std::size_t>(unit);
    return begun_[u] > added_[u] ? order_.level(added_[u]) + 1 : order_.open_sums(added_[u]);
  }

 private:
  // Of an open unit: the sum of a level of SumOrder.
  virtual const UnitViews& sums(int unit, int level) = 0;
  // All but the products, which the first pass overwrites.
  virtual void zero(int unit, int level) = 0;
  // Adds it to the one below.
  virtual void fold(int unit, int level) = 0;

  const offload::SumOrder order_;
  std::vector<std::int64_t> added_;  // micro-batches of the step, by unit
  std::vector<std::int64_t> begun_;  // likewise: one more while a micro-batch is being added
};

// What others have added up for parameters that they borrow of a unit, and where it belongs.
class BorrowedSums {
 public:
  // The units that have sums for a lender's parameters, in forward order. A frozen model has none:
  // a tied head uses the embedding there, and adds up no gradient for it.
  static std::vector<int> borrowers(const ModelLayout& model, int lender);
  // `own`: the lender's gradients; `sums_of`: a borrower's views of ModelLayout::borrowed_sums().
  static BorrowedSums of(const ModelLayout& model, int lender, const UnitViews& own,
                         const std::function<UnitViews(int borrower)>& sums_of);
  // Adds the sums to the lender's gradient.
  void take_over() const;
  int uses() const { return static_cast<int>(uses_of_.size()); }  // borrowers
  // Copies one borrower's sums to where the lender's gradient lay.
  void lay_out(int use) const;
  // Of the lender's elements, in which they then are.
  const std::vector<offload::ElementRange>& ranges(int use) const {
    return uses_of_[static_cast<std::size_t>(use)].ranges;
  }

 private:
  struct Use {
    at::Tensor gradient;
    at::Tensor sum;
  };
  struct UseOf {
    std::vector<std::size_t> uses;
    std::vector<offload::ElementRange> ranges;
  };
  void add(const ModelLayout& model, int lender, const UnitViews& own, int borrower,
           const UnitViews& sums);

  std::vector<Use> uses_;
  std::vector<UseOf> uses_of_;  // by borrower
};

class CpuGradientSink final : public GradientSink {
 public:
  struct Options {
    offload::GradType type = offload::GradType::kBf16;
    offload::Isa isa = offload::Isa::kScalar;
    bool huge_pages = true;
    offload::SumOrder order;
    offload::HeldSums sums;
    RankLink ranks;
  };
  // With several ranks the optimizer wants a shard of each unit, of the sum over all ranks:
  // finish() and totals() are then for all of them to call, in one order.
  //
  // Model and executor must outlive it; during finish() the executor is exclusive to it.
  static Result<std::unique_ptr<CpuGradientSink>> create(const ModelLayout& model,
                                                         aio::Executor& executor,
                                                         const Options& options);
  // Takes planned_cpu_sink_bytes() (engine/budget/cpu_sink_plan.h) of the host.

  Status open(int unit) override;
  Status keep(int unit) override;
  Status finish(int unit) override;
  Result<GradientTotals> totals() override;
  const void* host_gradient(int unit) const override;
  std::uint64_t host_bytes() const override { return host_.size_bytes(); }

 private:
  // One of a unit's sums.
  struct Sum {
    UnitViews gradients;  // gradient_views()
    std::span<float> own;
    std::span<float> borrowed;  // of what it borrows
  };
  struct Unit {
    std::vector<Sum> sums;  // by level
    // Of what others borrow, by level; with one rank only the first is of use.
    std::vector<BorrowedSums> borrowed_by;
    std::uint64_t offset_bytes = 0;  // in host_
    std::uint64_t elements = 0;      // of the whole unit
    offload::UnitShard shard;        // what the optimizer wants of it
    std::vector<offload::ElementRange> zeroed;
    std::unique_ptr<offload::SquareSum> sum;
    bool is_open = false;
    bool finished = false;
  };
  class Places;

  Result<const float*> reduced(int unit);
  const UnitViews& sums(int unit, int level) override;
  void zero(int unit, int level) override;
  void fold(int unit, int level) override;

  CpuGradientSink(const ModelLayout& model, aio::Executor& executor, const Options& options,
                  aio::PageMemory host, aio::PageMemory accumulators);
  Unit& at(int unit) { return units_[static_cast<std::size_t>(unit)]; }

  aio::Executor& executor_;
  const Options options_;
  aio::PageMemory host_;
  aio::PageMemory accumulators_;
  std::vector<Unit> units_;

  // With several ranks.
  const ModelLayout& model_;
  RankReduction reduction_;
  std::vector<float> shard_;         // what was reduced of a unit, while more is
  std::vector<const float*> roots_;  // of the unit that is reduced
};

}  // namespace sluice::engine
