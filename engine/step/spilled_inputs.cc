#include "engine/step/spilled_inputs.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <utility>

#include "engine/step/train_error.h"

namespace sluice::engine {

SpilledInputs::SpilledInputs(const ActivationPlan& plan, offload::InputSpill* spill)
    : spill_(spill) {
  if (spill == nullptr) return;
  int next = 0;
  for (const bool spilled : plan.spilled)
    first_.push_back(
        spilled ? std::exchange(next, next + static_cast<int>(plan.spill.pieces_of_unit)) : kNone);
  back_.reserve(static_cast<std::size_t>(next));
}

void SpilledInputs::turn_back(std::size_t micro_batches) {
  if (spill_ == nullptr) return;
  back_.clear();
  for (int unit = static_cast<int>(first_.size()); unit-- > 0;)
    for (std::size_t m = 0; has(unit) && m < micro_batches; ++m) back_.push_back(piece(unit, m));
  spill_->expect(back_);
}

namespace {

class SpillingUnitInputStore final : public UnitInputStore {
 public:
  SpillingUnitInputStore(const ModelLayout& model, SpilledInputs spilled)
      : last_(model.blocks()), others_(model.units()), spilled_(std::move(spilled)) {}

  void keep(int unit, std::span<const at::Tensor> inputs) override {
    if (spilled_.has(unit)) {
      like_ = inputs.front().options();
      shape_ = inputs.front().sizes().vec();
      for (std::size_t m = 0; m < inputs.size(); ++m) send(spilled_.piece(unit, m), inputs[m]);
    } else {
      others_.keep(unit, inputs);
    }
    if (unit == last_) spilled_.turn_back(inputs.size());
  }

  at::Tensor take(int unit, std::size_t micro_batch) override {
    if (!spilled_.has(unit)) return others_.take(unit, micro_batch);
    const int piece = spilled_.piece(unit, micro_batch);
    const std::span<const std::byte> bytes = value_or_throw(spilled_.spill().take(piece));
    at::Tensor input = at::empty(shape_, like_);
    std::memcpy(input.data_ptr(), bytes.data(), bytes.size());
    spilled_.spill().release(piece);
    return input;
  }

  void release(int unit) override { others_.release(unit); }

 private:
  void send(int piece, const at::Tensor& input) {
    const std::span<std::byte> place = value_or_throw(spilled_.spill().begin(piece));
    SLUICE_CHECK(input.nbytes() == place.size() && input.is_contiguous(),
                 "an input of the model's shape");
    std::memcpy(place.data(), input.data_ptr(), place.size());
    spilled_.spill().write(piece);
  }

  const int last_;  // the last unit whose input is kept
  PlainUnitInputStore others_;
  SpilledInputs spilled_;
  at::TensorOptions like_;
  std::vector<std::int64_t> shape_;
};

}  // namespace

std::unique_ptr<UnitInputStore> make_spilling_unit_input_store(const ModelLayout& model,
                                                               SpilledInputs spilled) {
  return std::make_unique<SpillingUnitInputStore>(model, std::move(spilled));
}

}  // namespace sluice::engine
