#include "engine/step/evaluation_pass.h"

#include <ATen/core/grad_mode.h>

#include <vector>

#include "engine/step/train_error.h"

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

// What the head makes of its input, for each micro-batch.
using HeadPass = at::Tensor (HeadUnit::*)(const UnitViews& parameters, const at::Tensor& input,
                                          const at::Tensor& targets) const;
std::vector<at::Tensor> run_units(const EvaluationParts& parts, const StepBatch& batch,
                                  HeadPass head_pass) {
  using offload::StepOp;
  const at::NoGradGuard no_tape;
  const ModelLayout& layout = parts.model->layout();
  const offload::StepProgram program = offload::forward_pass(program_units(layout));
  expect_passes({parts.parameters, parts.params}, program);
  FetchedUnits fetched(*parts.parameters);
  std::vector<at::Tensor> flow = batch.inputs;
  std::vector<at::Tensor> losses;
  for (const auto& [op, unit, wave] : program) {
    if (op == StepOp::kFetch || op == StepOp::kFetchAgain) {
      fetched.acquire(unit);
      continue;
    }
    const UnitViews views = fetched.views(layout, unit);
    for (std::size_t m = 0; m < flow.size(); ++m) {
      if (op == StepOp::kForward) {
        flow[m] = parts.model->unit(unit).forward(context(unit, m, batch), views, flow[m], nullptr);
      } else {
        losses.push_back((parts.model->head().*head_pass)(views, flow[m], batch.targets[m]));
        flow[m].reset();
      }
    }
    fetched.release();
    if (op == StepOp::kForward) must(parts.parameters->prefetch(unit + 1));
  }
  return losses;
}

}  // namespace

std::vector<LossSum> evaluate_batch(const EvaluationParts& parts, const StepBatch& batch) {
  const std::vector<at::Tensor> losses = run_units(parts, batch, &HeadUnit::loss_sum);
  std::vector<LossSum> sums;
  sums.reserve(losses.size());
  for (std::size_t m = 0; m < losses.size(); ++m)
    sums.push_back({.sum = losses[m].item<double>(), .tokens = batch.count(m)});
  return sums;
}

std::vector<at::Tensor> evaluate_tokens(const EvaluationParts& parts, const StepBatch& batch) {
  std::vector<at::Tensor> losses = run_units(parts, batch, &HeadUnit::token_losses);
  for (at::Tensor& loss : losses) loss = loss.to(at::kCPU, at::kFloat);
  return losses;
}

}  // namespace sluice::engine
