// NvmeGradientSink: gradients on NVMe from backward to update, for a run without a GPU whose
// gradients are more than its RAM (engine/budget/gradient_plan.h says when). A unit's sums lie in a
// buffer of a ParamOffloader's while the unit is open, and are written when it is closed; those of
// a step's first micro-batch are never read before. The update gets them by lease().
//
// The numbers and their order are CpuGradientSink's: the same bits.
//
// Memory:  planned_cpu_sink_bytes_beside_nvme(), beside the offloader's buffers.
// Threads: the one that trains; lease() from any.
// Errors:  the offloader's, which name the unit and the file.
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
    offload::SumOrder order;  // that has one sum of a unit at a time
  };
  // `places`: of MemoryPlan::gradients. All must outlive it; during finish() the executor is
  // exclusive to it.
  static Result<std::unique_ptr<NvmeGradientSink>> create(const ModelLayout& model,
                                                          aio::Executor& executor,
                                                          offload::ParamOffloader& places,
                                                          const Options& options);

  Status open(int unit) override;
  Status keep(int unit) override;
  Status prefetch(int unit) override;
  Status finish(int unit) override;
  bool forget() override;  // without IO, and so also where the drive has failed
  Result<GradientTotals> totals() override;
  const void* host_gradient(int /*unit*/) const override { return nullptr; }
  Result<offload::ParamOffloader::Lease> lease(int unit) override;
  std::uint64_t host_bytes() const override {
    return borrowed_.size_bytes() + sixteen_bit_.size_bytes();
  }

 private:
  struct Unit {
    bool has_sums = false;  // of the step that goes on, on NVMe
    bool is_complete = false;
    std::span<float> borrowed;  // sums of what it borrows
    std::vector<offload::ElementRange> zeroed;
    std::unique_ptr<offload::SquareSum> sum;
  };
  // What is open.
  struct Open {
    int unit = 0;
    offload::ParamOffloader::Lease lease;  // of nothing where the unit has no elements
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
