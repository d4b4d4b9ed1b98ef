#include "engine/python/family_pass.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/eq.h>

#include <exception>
#include <utility>

namespace sluice::engine {

// Units that are acquired for one operation; however that ends, none is left behind. Where a GPU
// has failed, it fails again as they are released: behind another exception that is not reported.
class FamilyPass::Held {
 public:
  explicit Held(ModuleRun& run) : run_(run) {}
  ~Held() noexcept(false) {
    for (const int unit : units_) {
      try {
        run_.release(unit);
      } catch (...) {
        if (std::uncaught_exceptions() == exceptions_) throw;
      }
    }
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  const UnitViews& acquire(int unit) {
    units_.push_back(unit);
    run_.acquire(unit);
    return run_.slot_views(unit);
  }

 private:
  ModuleRun& run_;
  std::vector<int> units_;
  const int exceptions_ = std::uncaught_exceptions();
};

FamilyPass::FamilyPass(ModuleRun& run, std::unique_ptr<Model> model, const Options& options)
    : run_(run), model_(std::move(model)), options_(options) {}

PassContext FamilyPass::context(const MicroBatchPass& pass, int unit) const {
  const std::optional<Documents>& documents = pass.batch_.documents;
  return {.run_seed = static_cast<std::uint64_t>(run_.config().run.seed),
          .step = pass.step_,
          .micro_batch = run_.number_in_step(pass.micro_batch_) + (pass.number_ << 32),
          .unit = unit,
          .training = pass.drops_,
          .deterministic = run_.config().run.deterministic,
          .documents = documents ? &*documents : nullptr};
}

bool FamilyPass::keeps_activations(int unit) const {
  const std::vector<bool>& planned = run_.plan().activations.kept;
  const bool is_planned = run_.plan().cuda && run_.config().placement.recompute == Tristate::kAuto;
  return !is_planned || planned[static_cast<std::size_t>(unit)];
}

// What the host is asked for, as offload::host_order() has it of a step.
void FamilyPass::expect(bool has_backward) {
  std::vector<int> order;
  const int head = model_->head_index();
  const auto add = [&](int unit, offload::PassDirection direction) {
    if (!run_.keeps(unit, direction)) order.push_back(unit);
  };
  // A step's first micro-batch finds new parameters everywhere.
  const auto add_forward = [&](int unit) {
    if (run_.micro_batch() == 0)
      order.push_back(unit);
    else
      add(unit, offload::PassDirection::kForward);
  };
  for (int unit = 0; unit < head; ++unit) add_forward(unit);
  for (const int lender : model_->layout().lenders(head))
    add(lender, offload::PassDirection::kForward);
  add_forward(head);
  if (has_backward) {
    for (const int lender : model_->layout().lenders(head))
      add(lender, offload::PassDirection::kBackward);
    add(head, offload::PassDirection::kBackward);
    for (int unit = head - 1; unit > 0; --unit) add(unit, offload::PassDirection::kBackward);
  }
  run_.expect(order, has_backward);
}

// The units that come next: up to the head, and back again without the embedding.
void FamilyPass::prefetch_behind(int unit, bool is_backward, bool has_backward) {
  const int head = model_->head_index();
  for (int left = run_.prefetch_units(); left > 0; --left) {
    if (!is_backward && unit == head) is_backward = true;
    if (is_backward && !has_backward) return;
    unit += is_backward ? -1 : 1;
    if (unit == 0) return;
    run_.prefetch(unit);
  }
}

// Of the units whose backward comes next.
void FamilyPass::prefetch_sums(int unit) {
  for (int ahead = 1; ahead <= GradientSink::kSumsAhead && unit - ahead >= 0; ++ahead)
    run_.prefetch_gradient(unit - ahead);
}

UnitViews FamilyPass::head_views(Held& held) {
  const int head = model_->head_index();
  std::vector<const UnitViews*> lenders;
  for (const int lender : model_->layout().lenders(head)) lenders.push_back(&held.acquire(lender));
  return with_borrowed(model_->layout(), head, held.acquire(head), lenders);
}

std::shared_ptr<MicroBatchPass> FamilyPass::forward(FamilyBatch batch, const How& how) {
  const at::NoGradGuard no_tape;
  for (int unit = 0; unit < model_->units(); ++unit) run_.release(unit);
  auto pass = std::make_shared<MicroBatchPass>();
  pass->batch_ = std::move(batch);
  pass->step_ = run_.train_state().global_step;
  pass->micro_batch_ = run_.micro_batch();
  pass->number_ = how.number;
  pass->drops_ = how.drops;
  pass->has_backward_ = how.has_backward;
  pass->inputs_.resize(static_cast<std::size_t>(model_->units()));
  pass->saved_.resize(pass->inputs_.size());
  expect(how.has_backward);
  const int head = model_->head_index();
  at::Tensor flow = pass->batch_.tokens;
  for (int unit = 0; unit < head; ++unit) {
    const auto u = static_cast<std::size_t>(unit);
    const bool is_block = unit > 0;
    const bool saves = how.has_backward && how.keeps && is_block && keeps_activations(unit);
    if (how.has_backward && is_block) pass->inputs_[u] = flow;
    {
      Held held(run_);
      const UnitViews& views = held.acquire(unit);
      flow = model_->unit(unit).forward(context(*pass, unit), views, flow,
                                        saves ? &pass->saved_[u] : nullptr);
    }
    prefetch_behind(unit, /*is_backward=*/false, how.has_backward);
  }
  Held held(run_);
  const UnitViews views = head_views(held);
  const at::Tensor sum = model_->head().loss_sum(views, flow, pass->batch_.targets);
  pass->loss_ = sum.div(pass->batch_.divisor).to(at::kFloat);
  pass->inputs_.back() = std::move(flow);
  return pass;
}

at::Tensor FamilyPass::head_backward(MicroBatchPass& pass, double scale) {
  Held held(run_);
  const UnitViews views = head_views(held);
  const GradientSink::Target target = run_.open_gradient(model_->head_index());
  HeadUnit::Loss loss = model_->head().loss_and_gradient(views, pass.inputs_.back(),
                                                         pass.batch_.targets, scale, target.sums);
  run_.close_gradient();
  return std::move(loss.grad_input);
}

at::Tensor FamilyPass::block_backward(MicroBatchPass& pass, int unit, const at::Tensor& gradient) {
  const auto u = static_cast<std::size_t>(unit);
  const ModelUnit& code = model_->unit(unit);
  Held held(run_);
  const UnitViews& views = held.acquire(unit);
  PassContext at_unit = context(pass, unit);
  const at::Tensor input = std::move(pass.inputs_[u]);
  Saved& saved = pass.saved_[u];
  const GradientSink::Target target = run_.open_gradient(unit);
  at_unit.overwrites = target.overwrites;
  if (saved.empty()) code.recompute(at_unit, views, input, saved);
  at::Tensor before = code.backward(at_unit, views, input, saved, gradient, target.sums);
  saved.clear();
  run_.close_gradient();
  return before;
}

void FamilyPass::embedding_backward(MicroBatchPass& pass, const at::Tensor& gradient) {
  PassContext at_unit = context(pass, 0);
  Saved nothing;
  const GradientSink::Target target = run_.open_gradient(0);
  at_unit.overwrites = target.overwrites;
  const at::Tensor& tokens = pass.batch_.tokens;
  if (options_.padding_row >= 0)
    gradient.masked_fill_(at::eq(tokens, options_.padding_row).unsqueeze(-1), 0);
  model_->unit(0).backward(at_unit, {}, tokens, nothing, gradient, target.sums);
  run_.close_gradient();
}

void FamilyPass::backward(MicroBatchPass& pass, double scale) {
  const at::NoGradGuard no_tape;
  TORCH_CHECK_VALUE(std::exchange(pass.has_backward_, false),
                    "a loss of an evaluation, or whose backward has been, has no gradient");
  for (int unit = 0; unit < model_->units(); ++unit) run_.release(unit);
  run_.begin_backward();
  const int head = model_->head_index();
  // Without any target that counts the loss is none, and its gradient zero, as torch has it.
  const double divisor = pass.batch_.divisor;
  at::Tensor gradient = head_backward(pass, divisor == 0 ? 0 : scale / divisor);
  prefetch_behind(head, /*is_backward=*/true, true);
  prefetch_sums(head);
  for (int unit = head - 1; unit > 0; --unit) {
    gradient = block_backward(pass, unit, gradient);
    prefetch_behind(unit, /*is_backward=*/true, true);
    prefetch_sums(unit);
  }
  embedding_backward(pass, gradient);
}

at::Tensor FamilyPass::logits(const MicroBatchPass& pass) {
  const at::NoGradGuard no_tape;
  for (int unit = 0; unit < model_->units(); ++unit) run_.release(unit);
  Held held(run_);
  const at::Tensor& input = pass.inputs_.back();
  return model_->head().logits(head_views(held), input, input.size(1));
}

}  // namespace sluice::engine
