// GradientSink: accumulates a unit's gradient and passes it to the optimizer.
//
// Backward adds a unit's gradient over all micro-batches in fp32, in a buffer on the device that
// computes. In one pass, finish() casts the sum to the 16-bit gradient type, into host memory that
// belongs to the unit, and sums the squares of the cast values. In fp32 mode there is no cast. The
// gradient stays in that memory until the unit's update has consumed it. If the plan says so, the
// memory is a buffer, and the gradient waits on NVMe. The gradient of state that the GPU updates
// stays on the GPU.
//
// Additions follow offload::SumOrder: it says how many sums a unit has at a time, and each
// micro-batch is added to the last of them.
//
// If a step has several waves, keep() closes a unit in all but the last one, and the next open()
// finds its sums again. Units whose state is all on the device keep them there. The sums of other
// units move to the unit's place in host memory; they are fetched ahead and written back while
// passes are computed. The fp32 sums themselves move. Adding the sums of each wave on the host
// would change the order of additions.
//
// One unit is open at a time. The gradients of parameters that a unit borrows have separate sums,
// so the order of additions does not depend on how the backwards of units and micro-batches
// interleave. The lender's finish() adds these sums to its gradient, in the forward order of the
// borrowers. A unit without trained parameters is opened and finished like the others, and has no
// views.
//
// Memory:  host_bytes() of pinned host memory; on the device, sums for the largest unit, and for
//          each unit that borrows.
// Threads: the training thread; host_gradient() from any thread.
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
  double square_sum = 0;            // over all units, in ascending order
  std::vector<double> square_sums;  // of each unit that has parameters, in that order
  bool finite = true;
  // The unit in which the gradient stopped being finite: the first bad one in backward order.
  std::optional<int> first_not_finite;
  std::string not_finite_elsewhere;  // or a unit of another stage of a pipeline
};

// `sums`: by unit.
GradientTotals gradient_totals(const ModelLayout& model,
                               const std::vector<const offload::SquareSum*>& sums);

// Views of a unit's sums on the host. `memory` has UnitLayout::slot_elements; there are no views if
// the unit has no parameters.
UnitViews fp32_views(const UnitLayout& layout, float* memory);

class GradientSink {
 public:
  static constexpr int kSumsAhead = 2;  // how far ahead prefetch() helps

  // The sums to which a pass adds the gradient of a micro-batch.
  struct Target {
    const UnitViews& sums;    // as gradient_views()
    bool overwrites = false;  // PassContext::overwrites: the products' sums are uninitialized
  };

  GradientSink(const offload::SumOrder& order, int units)
      : order_(order), added_(static_cast<std::size_t>(units)), begun_(added_) {}
  virtual ~GradientSink() = default;

  // Opens a unit for the micro-batches of a wave. Each gets its target(), and is added() once its
  // pass is enqueued. The order is ascending over the whole step.
  virtual Status open(int unit) = 0;
  Target target(int unit, std::int64_t micro_batch);
  // Continues the same micro-batch, after its target() and before its added(), with its partial
  // sums. The unit was kept in between.
  const UnitViews& target_again(int unit, std::int64_t micro_batch) {
    return sums(unit, order_.level(micro_batch));
  }
  void added(int unit, std::int64_t micro_batch);
  // Closes the unit until the next wave adds to it. The update of the previous step must have
  // consumed the last gradient.
  virtual Status keep(int unit) = 0;
  // Hint: a kept unit will be opened soon. Never waits.
  virtual Status prefetch(int /*unit*/) { return {}; }
  // Completes the unit's gradient. The update of the previous step must have consumed the last one.
  virtual Status finish(int unit) = 0;
  // Discards all gradients since the last step, in whatever state the units are. False:
  // unsupported; the caller must do this for each unit.
  virtual bool forget() { return false; }
  // Waits until every unit's gradient is where the optimizer reads it. This is the only wait of a
  // step.
  virtual Result<GradientTotals> totals() = 0;

  // Null if the device updates the whole unit, or if lease() provides the gradient.
  virtual const void* host_gradient(int unit) const = 0;
  // For gradients on NVMe: a complete gradient, valid while the lease lasts. May wait for the
  // drive. Any thread.
  virtual Result<offload::ParamOffloader::Lease> lease(int /*unit*/) {
    return offload::ParamOffloader::Lease();
  }
  // The place on the device of the whole unit's gradient, if the unit has state there; else null.
  virtual const void* device_gradient(int /*unit*/) const { return nullptr; }
  // Copies that gradient once all enqueued work is done; for inspection.
  virtual Status read_device(int /*unit*/, std::span<std::byte> /*to*/) const {
    return Error(ErrorCode::kUnsupported, "no gradient stays on this device");
  }
  virtual std::uint64_t host_bytes() const = 0;
  virtual std::uint64_t copied_bytes() const { return 0; }   // to the host, so far
  virtual std::uint64_t fetched_bytes() const { return 0; }  // sums from the host, so far

 protected:
  const offload::SumOrder& order() const { return order_; }
  // How many sums an open unit has, counting the micro-batch that is being added.
  int open_sums(int unit) const {
    const auto u = static_cast<std::size_t>(unit);
    return begun_[u] > added_[u] ? order_.level(added_[u]) + 1 : order_.open_sums(added_[u]);
  }

 private:
  // The sum of a level of SumOrder; the unit is open.
  virtual const UnitViews& sums(int unit, int level) = 0;
  // Zeroes all but the products, which the first pass overwrites.
  virtual void zero(int unit, int level) = 0;
  // Adds the level to the one below.
  virtual void fold(int unit, int level) = 0;

  const offload::SumOrder order_;
  std::vector<std::int64_t> added_;  // micro-batches of the step added so far, by unit
  std::vector<std::int64_t> begun_;  // the same, plus one while a micro-batch is being added
};

// The sums that borrowers hold for a lender's parameters, and where they belong in its gradient.
class BorrowedSums {
 public:
  // The units that have sums for a lender's parameters, in forward order. A frozen model has none:
  // a tied head uses the embedding, but accumulates no gradient for it.
  static std::vector<int> borrowers(const ModelLayout& model, int lender);
  // `own`: the lender's gradients; `sums_of`: a borrower's views of ModelLayout::borrowed_sums().
  static BorrowedSums of(const ModelLayout& model, int lender, const UnitViews& own,
                         const std::function<UnitViews(int borrower)>& sums_of);
  // Adds the sums to the lender's gradient.
  void add_to_lender() const;
  int uses() const { return static_cast<int>(uses_of_.size()); }  // borrowers
  // Copies one borrower's sums into the memory of the lender's gradient.
  void copy_to_lender(int use) const;
  // The lender's elements that copy_to_lender() fills.
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
  // With several ranks the optimizer needs each unit's shard of the sum over all ranks: finish()
  // and totals() are then collective, in the same order on all ranks.
  //
  // Model and executor must outlive it; finish() needs the executor to itself.
  static Result<std::unique_ptr<CpuGradientSink>> create(const ModelLayout& model,
                                                         aio::Executor& executor,
                                                         const Options& options);
  // Takes planned_cpu_sink_bytes() (engine/budget/cpu_sink_plan.h) of host memory.

  Status open(int unit) override;
  Status keep(int unit) override;
  Status finish(int unit) override;
  Result<GradientTotals> totals() override;
  const void* host_gradient(int unit) const override;
  std::uint64_t host_bytes() const override { return host_.size_bytes(); }

 private:
  // One of a unit's sums, at one level.
  struct Sum {
    UnitViews gradients;  // gradient_views()
    std::span<float> own;
    std::span<float> borrowed;  // for the parameters it borrows
  };
  struct Unit {
    std::vector<Sum> sums;  // by level
    // The borrowers' sums, by level; with one rank only the first is used.
    std::vector<BorrowedSums> borrowed_by;
    std::uint64_t offset_bytes = 0;  // in host_
    std::uint64_t elements = 0;      // of the whole unit
    offload::UnitShard shard;        // the part that the optimizer needs
    std::vector<offload::ElementRange> zeroed;
    std::unique_ptr<offload::SquareSum> sum;
    bool is_open = false;
    bool finished = false;
  };
  class SumAllocator;

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

  const ModelLayout& model_;
  std::vector<float*> roots_;  // of the unit being reduced
  // With one rank its own sum is the sum over all ranks, in place.
  struct Exchange {
    RankReduction reduction;
    std::vector<float> shard;  // the unit's reduced shard, while borrowed sums are reduced
  };
  std::optional<Exchange> exchange_;
};

// NvmeGradientSink: keeps gradients on NVMe from backward to update, for a run without a GPU whose
// gradients exceed its RAM (engine/budget/gradient_plan.h decides). An open unit's sums are in a
// buffer of a ParamOffloader and are written when it is closed. A step's first micro-batch replaces
// the old sums without reading them. The update gets the gradient by lease().
//
// The values and the order of additions are CpuGradientSink's: the results have the same bits.
//
// Memory:  planned_cpu_sink_bytes_with_nvme(), in addition to the offloader's buffers.
// Threads: the training thread; lease() from any thread.
// Errors:  those of the offloader, which name the unit and the file.
class NvmeGradientSink final : public GradientSink {
 public:
  struct Options {
    offload::GradType type = offload::GradType::kBf16;
    offload::Isa isa = offload::Isa::kScalar;
    offload::SumOrder order;  // must keep one sum of a unit at a time
  };
  // `places`: made from MemoryPlan::gradients. All must outlive it; finish() needs the executor to
  // itself.
  static Result<std::unique_ptr<NvmeGradientSink>> create(const ModelLayout& model,
                                                          aio::Executor& executor,
                                                          offload::ParamOffloader& places,
                                                          const Options& options);

  Status open(int unit) override;
  Status keep(int unit) override;
  Status prefetch(int unit) override;
  Status finish(int unit) override;
  bool forget() override;  // without IO, so it also works after the drive has failed
  Result<GradientTotals> totals() override;
  const void* host_gradient(int /*unit*/) const override { return nullptr; }
  Result<offload::ParamOffloader::Lease> lease(int unit) override;
  std::uint64_t host_bytes() const override {
    return borrowed_.size_bytes() + sixteen_bit_.size_bytes();
  }

 private:
  struct Unit {
    bool has_sums = false;  // sums of the current step are on NVMe
    bool is_complete = false;
    std::span<float> borrowed;  // sums for the parameters it borrows
    std::vector<offload::ElementRange> zeroed;
    std::unique_ptr<offload::SquareSum> sum;
  };
  // The open unit.
  struct Open {
    int unit = 0;
    offload::ParamOffloader::Lease lease;  // empty if the unit has no elements
    UnitViews own;
    UnitViews gradients;  // gradient_views()
  };

  NvmeGradientSink(const ModelLayout& model, aio::Executor& executor,
                   offload::ParamOffloader& places, const Options& options,
                   aio::PageMemory borrowed, aio::PageMemory sixteen_bit);

  const UnitViews& sums(int unit, int level) override;
  void zero(int unit, int level) override;
  void fold(int unit, int level) override;
  void take_over_borrowed();
  Unit& at(int unit) { return units_[static_cast<std::size_t>(unit)]; }

  const ModelLayout& model_;
  aio::Executor& executor_;
  offload::ParamOffloader& places_;
  const Options options_;
  aio::PageMemory borrowed_;
  aio::PageMemory sixteen_bit_;
  std::vector<Unit> units_;
  std::optional<Open> open_;
};

}  // namespace sluice::engine
