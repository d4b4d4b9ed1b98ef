#include "engine/train/evaluation_pass.h"

#include <ATen/core/grad_mode.h>

#include <vector>

#include "engine/model/gpt_layout.h"
#include "engine/train/train_error.h"

namespace sluice::engine {
namespace {

// Two passes: while this one ends, the next one's parameters are read.
void expect_units(const EvaluationParts& parts) {
  std::vector<int> order;
  for (int pass = 0; pass < 2; ++pass) {
    for (int unit = 0; unit < parts.model->units(); ++unit)
      if (parts.params->on_host(unit)) order.push_back(unit);
    if (!parts.parameters->keeps(0) && parts.params->on_host(0)) order.push_back(0);  // the head's
  }
  parts.params->expect(order);
}

PassContext context(int unit, std::size_t micro_batch) {
  PassContext pass;
  pass.micro_batch = static_cast<std::int64_t>(micro_batch);
  pass.unit = unit;
  pass.training = false;
  return pass;
}

}  // namespace

LossSum evaluate_batch(const EvaluationParts& parts, const StepBatch& batch) {
  const at::NoGradGuard no_tape;
  expect_units(parts);
  const int head = parts.model->head_index();
  std::vector<at::Tensor> flow = batch.inputs;
  for (int unit = 0; unit < head; ++unit) {
    const UnitViews& views = *must(parts.parameters->acquire(unit));
    for (std::size_t m = 0; m < flow.size(); ++m)
      flow[m] = parts.model->unit(unit).forward(context(unit, m), views, flow[m], nullptr);
    parts.parameters->release(unit);
    must(parts.parameters->prefetch(unit + 1));
  }
  const UnitViews& views = *must(parts.parameters->acquire(head));
  const UnitViews& embedding = *must(parts.parameters->acquire(0));
  std::vector<at::Tensor> losses;
  for (std::size_t m = 0; m < flow.size(); ++m) {
    losses.push_back(parts.model->head().loss_sum(views, embedding[embedding_parameter::kToken],
                                                  flow[m], batch.targets[m]));
    flow[m].reset();
  }
  parts.parameters->release(0);
  parts.parameters->release(head);

  LossSum total;
  for (std::size_t m = 0; m < losses.size(); ++m) {
    total +=
        {.sum = losses[m].item<double>(), .tokens = static_cast<double>(batch.targets[m].numel())};
  }
  return total;
}

}  // namespace sluice::engine
