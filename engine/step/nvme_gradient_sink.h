// NvmeGradientSink: keeps gradients on NVMe from backward to update, for a run without a GPU whose
// gradients exceed its RAM (engine/budget/gradient_plan.h decides). An open unit's sums are in a
// buffer of a ParamOffloader and are written when it is closed. A step's first micro-batch replaces
// the old sums without reading them. The update gets the gradient by lease().
//
// The values and the order of additions are CpuGradientSink's: the results have the same bits.
//
// Memory:  planned_cpu_sink_bytes_beside_nvme(), in addition to the offloader's buffers.
// Threads: the training thread; lease() from any thread.
// Errors:  those of the offloader, which name the unit and the file.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/step/gradient_sink.h"
#include "offload/params/param_offloader.h"

namespace sluice::engine {

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
