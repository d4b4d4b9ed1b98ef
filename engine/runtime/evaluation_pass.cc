#include "engine/runtime/evaluation_pass.h"

#include <ATen/core/grad_mode.h>

#include <utility>
#include <vector>

namespace sluice::engine {
namespace {

PassContext context(int unit, std::size_t micro_batch, const StepBatch& batch) {
  PassContext pass;
  pass.micro_batch = static_cast<std::int64_t>(micro_batch);
  pass.unit = unit;
  pass.training = false;
  pass.documents = batch.documents_of(micro_batch);
  return pass;
}

// The head's pass over each micro-batch.
using HeadPass = at::Tensor (HeadUnit::*)(const UnitViews& parameters, const at::Tensor& input,
                                          const at::Tensor& targets) const;

class LossPasses final : public Passes {
 public:
  LossPasses(const Model& model, const StepBatch& batch, HeadPass head_pass)
      : model_(model), batch_(batch), head_pass_(head_pass), flow_(batch.inputs) {}

  void forward(int unit, const UnitViews& views) override {
    for (std::size_t m = 0; m < flow_.size(); ++m)
      flow_[m] = model_.unit(unit).forward(context(unit, m, batch_), views, flow_[m], nullptr);
  }
  void head(int /*unit*/, const UnitViews& views) override {
    for (std::size_t m = 0; m < flow_.size(); ++m) {
      losses_.push_back((model_.head().*head_pass_)(views, flow_[m], batch_.targets[m]));
      flow_[m].reset();
    }
  }
  std::vector<at::Tensor> take() { return std::move(losses_); }

 private:
  const Model& model_;
  const StepBatch& batch_;
  const HeadPass head_pass_;
  std::vector<at::Tensor> flow_;
  std::vector<at::Tensor> losses_;
};

std::vector<at::Tensor> losses_of(Resources& parts, const Model& model, const StepBatch& batch,
                                  HeadPass head_pass) {
  LossPasses passes(model, batch, head_pass);
  run_forward(parts, passes);
  return passes.take();
}

}  // namespace

void run_forward(Resources& parts, Passes& passes) {
  const at::NoGradGuard no_tape;
  const offload::StepProgram program = offload::forward_pass(program_units(parts.model()));
  StepEngine engine(parts, /*prefetch_units=*/1);
  engine.expect(program, /*updates_run=*/false, engine.wanted(program));
  engine.run(program, passes);
}

std::vector<LossSum> evaluate_batch(Resources& parts, const Model& model, const StepBatch& batch) {
  const std::vector<at::Tensor> losses = losses_of(parts, model, batch, &HeadUnit::loss_sum);
  std::vector<LossSum> sums;
  sums.reserve(losses.size());
  for (std::size_t m = 0; m < losses.size(); ++m)
    sums.push_back({.sum = losses[m].item<double>(), .tokens = batch.count(m)});
  return sums;
}

std::vector<at::Tensor> evaluate_tokens(Resources& parts, const Model& model,
                                        const StepBatch& batch) {
  std::vector<at::Tensor> losses = losses_of(parts, model, batch, &HeadUnit::token_losses);
  for (at::Tensor& loss : losses) loss = loss.to(at::kCPU, at::kFloat);
  return losses;
}

}  // namespace sluice::engine
