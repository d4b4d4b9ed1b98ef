#include "engine/step/adapted_unit_parameters.h"

#include <utility>

namespace sluice::engine {
namespace {

class AdaptedUnitParameters final : public UnitParameters {
 public:
  AdaptedUnitParameters(const ModelLayout& model, std::unique_ptr<UnitParameters> base,
                        std::unique_ptr<UnitParameters> adapters)
      : model_(model),
        base_(std::move(base)),
        adapters_(std::move(adapters)),
        views_(static_cast<std::size_t>(model.units())) {}

  Status prefetch(int unit) override {
    if (is_adapted(unit)) SLUICE_RETURN_IF_ERROR(adapters_->prefetch(unit));
    return base_->prefetch(unit);
  }
  bool prefetch_gathers() const override {
    return base_->prefetch_gathers() || adapters_->prefetch_gathers();
  }

  Result<const UnitViews*> acquire(int unit) override {
    SLUICE_ASSIGN_OR_RETURN(const UnitViews* const base, base_->acquire(unit));
    if (!is_adapted(unit)) return base;
    auto adapters = adapters_->acquire(unit);
    if (!adapters.ok()) {
      base_->release(unit);
      return std::move(adapters).error();
    }
    UnitViews& views = views_[static_cast<std::size_t>(unit)];  // both parts are fixed for the run
    if (views.size() == 0) views = with_adapters(*base, **adapters);
    return &views;
  }

  void release(int unit) override {
    if (is_adapted(unit)) adapters_->release(unit);
    base_->release(unit);
  }

  bool keeps(int unit, offload::PassDirection direction) const override {
    return base_->keeps(unit, direction);
  }
  void* shard_place(int unit) const override {
    return is_adapted(unit) ? adapters_->shard_place(unit) : nullptr;
  }
  Status read_shard(int unit, std::span<std::byte> to) const override {
    return adapters_->read_shard(unit, to);
  }
  void expect_base(std::span<const int> order) override { base_->expect_base(order); }
  void changed() override { adapters_->changed(); }
  std::uint64_t copied_bytes() const override {
    return base_->copied_bytes() + adapters_->copied_bytes();
  }

 private:
  bool is_adapted(int unit) const { return model_.layout(unit).elements > 0; }

  const ModelLayout& model_;
  const std::unique_ptr<UnitParameters> base_;
  const std::unique_ptr<UnitParameters> adapters_;
  std::vector<UnitViews> views_;  // by unit; empty until first acquired
};

}  // namespace

std::unique_ptr<UnitParameters> make_adapted_unit_parameters(
    const ModelLayout& model, std::unique_ptr<UnitParameters> base,
    std::unique_ptr<UnitParameters> adapters) {
  return std::make_unique<AdaptedUnitParameters>(model, std::move(base), std::move(adapters));
}

}  // namespace sluice::engine
