#include "engine/probe/unit_timer.h"

#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "aio/units.h"
#include "engine/device/phase_clock.h"
#include "engine/model/torch_types.h"
#include "engine/probe/gpu_probe.h"

namespace sluice::engine {
namespace {

constexpr std::size_t kPhases = 3;  // forward, recompute, backward
constexpr std::size_t kLeastRounds = 3;
constexpr std::size_t kMostRounds = 25;
// How much longer than requested whole micro-batches may take, as a factor.
constexpr double kPatience = 3;
// cuBLAS' workspace, and the allocators' rounding.
constexpr std::uint64_t kLibraryBytes = 128 * kMiB;
// One part in this many is in holes between LibTorch's blocks that are too small for use.
constexpr std::uint64_t kHolesShare = 4;

double in_all(const UnitSeconds& seconds) {
  return seconds.forward_s + seconds.recompute_s + seconds.backward_s;
}

// The parameters and gradients of one unit.
struct UnitMemory {
  enum class Gradients : std::uint8_t { kNo, kYes };
  UnitMemory(const UnitLayout& layout, const UnitTimerOptions& options, Gradients wanted)
      : flat(at::randn({static_cast<std::int64_t>(layout.slot_elements)}, tensor_options(options))
                 .mul_(kStd)),
        parameters(layout, flat) {
    if (wanted == Gradients::kNo) return;
    flat_gradient = at::zeros({static_cast<std::int64_t>(layout.slot_elements)},
                              at::TensorOptions().dtype(at::kFloat).device(options.device));
    gradients = UnitViews(layout, flat_gradient);
  }

  static at::TensorOptions tensor_options(const UnitTimerOptions& options) {
    return at::TensorOptions().dtype(scalar_type(options.type)).device(options.device);
  }

  static constexpr double kStd = 0.02;
  at::Tensor flat;
  at::Tensor flat_gradient;
  UnitViews parameters;
  UnitViews gradients;
};

// The views of one unit, followed by those that it borrows.
class BoundUnit {
 public:
  BoundUnit(const ModelLayout& layout, int unit, const UnitTimerOptions& options)
      : own_(layout.layout(unit), options, UnitMemory::Gradients::kYes) {
    const bool frozen = layout.has_frozen();
    std::vector<const UnitViews*> lent;
    for (const int lender : layout.lenders(unit)) {
      lenders_.push_back(std::make_unique<UnitMemory>(layout.base_layout(lender), options,
                                                      UnitMemory::Gradients::kNo));
      lent.push_back(&lenders_.back()->parameters);
    }
    const UnitLayout& borrowed = layout.borrowed_sums(unit);
    if (borrowed.slot_elements > 0)
      borrowed_ = std::make_unique<UnitMemory>(borrowed, options, UnitMemory::Gradients::kYes);
    if (frozen)
      base_ =
          std::make_unique<UnitMemory>(layout.frozen(unit), options, UnitMemory::Gradients::kNo);
    parameters = with_borrowed(
        layout, unit, frozen ? with_adapters(base_->parameters, own_.parameters) : own_.parameters,
        lent);
    gradients = gradient_views(layout, unit, own_.gradients,
                               borrowed_ ? borrowed_->gradients : UnitViews());
  }

  UnitViews parameters;
  UnitViews gradients;

 private:
  UnitMemory own_;
  std::unique_ptr<UnitMemory> base_;      // of a frozen model
  std::unique_ptr<UnitMemory> borrowed_;  // its gradients are the unit's sums for what it borrows
  std::vector<std::unique_ptr<UnitMemory>> lenders_;
};

class UnitTimer {
 public:
  UnitTimer(const Model& model, const UnitTimerOptions& options)
      : model_(model),
        options_(options),
        clock_(options.device.is_cuda() ? make_cuda_phase_clock()
                                        : std::make_unique<CpuPhaseClock>()) {}

  UnitSeconds unit(int index) {
    const ModelUnit& unit = model_.unit(index);
    const BoundUnit memory(model_.layout(), index, options_);
    const PassContext context{
        .unit = index, .deterministic = options_.deterministic, .overwrites = true};
    return median([&](std::int64_t sequences) {
      const at::Tensor input = index == 0 ? tokens(sequences) : activations(sequences);
      const at::Tensor grad_output = activations(sequences);
      const auto forward = [&] { unit.forward(context, memory.parameters, input, nullptr); };
      if (options_.device.is_cuda()) forward();  // so that the host is ahead of the device
      clock_->mark(0);
      forward();
      clock_->mark(1);
      Saved saved;
      unit.recompute(context, memory.parameters, input, saved);
      clock_->mark(2);
      unit.backward(context, memory.parameters, input, saved, grad_output, memory.gradients);
      clock_->mark(3);
      return UnitSeconds{
          .forward_s = between(0, 1), .recompute_s = between(1, 2), .backward_s = between(2, 3)};
    });
  }

  UnitSeconds head() {
    const BoundUnit memory(model_.layout(), model_.head_index(), options_);
    return median([&](std::int64_t sequences) {
      const at::Tensor input = activations(sequences);
      const at::Tensor targets = tokens(sequences);
      const auto loss = [&] { model_.head().loss_sum(memory.parameters, input, targets); };
      if (options_.device.is_cuda()) loss();
      clock_->mark(0);
      loss();
      clock_->mark(1);
      model_.head().loss_and_gradient(memory.parameters, input, targets, 1.0, memory.gradients);
      clock_->mark(2);
      const double forward_s = between(0, 1);
      return UnitSeconds{.forward_s = forward_s,
                         .recompute_s = 0,
                         .backward_s = std::max(between(1, 2) - forward_s, 0.0)};
    });
  }

 private:
  double between(int from, int to) {
    return 1e-9 * static_cast<double>(clock_->elapsed_ns(from, to));
  }
  at::Tensor tokens(std::int64_t sequences) const {
    return at::randint(model_.layout().vocab(), {sequences, options_.tokens},
                       at::TensorOptions().dtype(at::kLong).device(options_.device));
  }
  at::Tensor activations(std::int64_t sequences) const {
    return at::randn({sequences, options_.tokens, model_.layout().hidden()},
                     UnitMemory::tensor_options(options_));
  }

  template <typename Round>
  UnitSeconds median(const Round& round) {
    const double seconds =
        options_.seconds / static_cast<double>(model_.layout().first_of_kinds().size());
    UnitSeconds one = round(1);
    if (options_.device.is_cuda()) one = round(1);  // the first round loads kernels
    const auto sequences = static_cast<double>(options_.micro_batch);
    if (in_all(one) * sequences > kPatience * seconds) {
      return {.forward_s = sequences * one.forward_s,
              .recompute_s = sequences * one.recompute_s,
              .backward_s = sequences * one.backward_s};
    }
    if (options_.micro_batch > 1) {
      // Blocks cached for one sequence do not fit several sequences.
      if (options_.device.is_cuda()) return_gpu_memory();
      round(options_.micro_batch);
    }
    std::array<std::vector<double>, kPhases> phases;
    std::vector<double> rounds;
    double spent_s = 0;
    while (phases[0].size() < kMostRounds &&
           (spent_s < seconds || phases[0].size() < kLeastRounds)) {
      const UnitSeconds once = round(options_.micro_batch);
      phases[0].push_back(once.forward_s);
      phases[1].push_back(once.recompute_s);
      phases[2].push_back(once.backward_s);
      rounds.push_back(in_all(once));
      spent_s += rounds.back();
      if (spent_s > kPatience * seconds) break;
    }
    if (options_.spread != nullptr) options_.spread->add(std::move(rounds));
    return {.forward_s = median_of(std::move(phases[0])),
            .recompute_s = median_of(std::move(phases[1])),
            .backward_s = median_of(std::move(phases[2]))};
  }

  const Model& model_;
  const UnitTimerOptions options_;
  const std::unique_ptr<PhaseClock> clock_;
};

}  // namespace

std::uint64_t unit_timer_bytes(const ModelLayout& model, const UnitTimerOptions& options) {
  const std::uint64_t number_bytes = offload::element_bytes(options.type);
  const PassShape pass{.micro_batch = options.micro_batch,
                       .tokens = options.tokens,
                       .number_bytes = static_cast<std::int64_t>(number_bytes)};
  const PeakOptions peak{.cpu = !options.device.is_cuda(), .deterministic = options.deterministic};
  std::uint64_t used = 0;
  for (const int unit : model.first_of_kinds()) {
    std::uint64_t trained = model.layout(unit).slot_elements;
    std::uint64_t frozen = model.frozen(unit).slot_elements;
    for (const int lender : model.lenders(unit))
      (model.has_frozen() ? frozen : trained) += model.base_layout(lender).slot_elements;
    used = std::max(used, (trained + frozen) * number_bytes + trained * sizeof(float) +
                              model.kind(unit).peak_bytes(pass, peak));
  }
  used += 2 * model.unit_input_bytes(pass);
  return used + used / kHolesShare + kLibraryBytes;
}

Result<UnitTimes> time_units(const Model& model, const UnitTimerOptions& options,
                             const std::function<void(double)>& on_progress) {
  const std::uint64_t needed = unit_timer_bytes(model.layout(), options);
  if (options.memory_limit_bytes && needed > *options.memory_limit_bytes) {
    return Error(ErrorCode::kOutOfMemory,
                 "timing one micro-batch of this model takes " + format_bytes(needed) +
                     " of memory, but only " + format_bytes(*options.memory_limit_bytes) +
                     " may be used: lower train_micro_batch_size_per_gpu, or raise the budget "
                     "(budget.gpu_gib, budget.cpu_gib)");
  }
  UnitTimes times(model.layout());
  UnitTimer timer(model, options);
  const auto tell = [&](std::size_t done) {
    if (options.device.is_cuda()) return_gpu_memory();
    if (on_progress)
      on_progress(static_cast<double>(done) / static_cast<double>(times.kinds.size()));
  };
  for (std::size_t i = 0; i < times.kinds.size(); ++i) {
    tell(i);
    const int unit = model.layout().first_of_kinds()[i];
    times.kinds[i].seconds = unit == model.head_index() ? timer.head() : timer.unit(unit);
  }
  tell(times.kinds.size());
  return times;
}

}  // namespace sluice::engine
