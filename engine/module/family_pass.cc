#include "engine/module/family_pass.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/eq.h>

#include <optional>
#include <utility>

namespace sluice::engine {

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

// One pass of a micro-batch, forward or backward.
class FamilyPass::Computation final : public Passes {
 public:
  struct How {
    bool keeps = false;                // blocks may save what backward needs
    std::optional<double> scale = {};  // for backward
  };
  Computation(FamilyPass& passes, MicroBatchPass& pass, const How& how)
      : passes_(passes), model_(*passes.model_), run_(passes.run_), pass_(pass), how_(how) {}

  void begin_wave(int /*wave*/) override { flow_ = pass_.batch_.tokens; }

  void forward(int unit, const UnitViews& views) override {
    const auto u = static_cast<std::size_t>(unit);
    const bool is_block = unit > 0;
    const bool saves = how_.keeps && is_block && passes_.keeps_activations(unit);
    if (pass_.has_backward_ && is_block) pass_.inputs_[u] = flow_;
    flow_ = model_.unit(unit).forward(passes_.context(pass_, unit), views, flow_,
                                      saves ? &pass_.saved_[u] : nullptr);
  }

  void head(int unit, const UnitViews& views) override {
    if (how_.scale) {
      const GradientSink::Target target = run_.open_gradient(unit);
      HeadUnit::Loss loss = model_.head().loss_and_gradient(
          views, pass_.inputs_.back(), pass_.batch_.targets, *how_.scale, target.sums);
      run_.added_gradient(unit);
      flow_ = std::move(loss.grad_input);
      return;
    }
    const at::Tensor sum = model_.head().loss_sum(views, flow_, pass_.batch_.targets);
    pass_.loss_ = sum.div(pass_.batch_.divisor).to(at::kFloat);
    pass_.inputs_.back() = std::move(flow_);
  }

  void backward(int unit, const UnitViews& views) override {
    const auto u = static_cast<std::size_t>(unit);
    const ModelUnit& code = model_.unit(unit);
    const bool is_block = unit > 0;
    const at::Tensor input = is_block ? std::move(pass_.inputs_[u]) : pass_.batch_.tokens;
    Saved& saved = pass_.saved_[u];
    PassContext at_unit = passes_.context(pass_, unit);
    const GradientSink::Target target = run_.open_gradient(unit);
    at_unit.overwrites = target.overwrites;
    const std::int64_t padding = passes_.options_.padding_row;
    if (!is_block && padding >= 0) flow_.masked_fill_(at::eq(input, padding).unsqueeze(-1), 0);
    if (is_block && saved.empty()) code.recompute(at_unit, views, input, saved);
    flow_ = code.backward(at_unit, views, input, saved, flow_, target.sums);
    saved.clear();
    run_.added_gradient(unit);
  }

 private:
  FamilyPass& passes_;
  const Model& model_;
  ModuleRun& run_;
  MicroBatchPass& pass_;
  const How how_;
  at::Tensor flow_;  // passed from unit to unit
};

std::shared_ptr<MicroBatchPass> FamilyPass::forward(FamilyBatch batch, const How& how) {
  const at::NoGradGuard no_tape;
  run_.release_all();
  auto pass = std::make_shared<MicroBatchPass>();
  pass->batch_ = std::move(batch);
  pass->step_ = run_.train_state().global_step;
  pass->micro_batch_ = run_.micro_batch();
  pass->number_ = how.number;
  pass->drops_ = how.drops;
  pass->has_backward_ = how.has_backward;
  pass->inputs_.resize(static_cast<std::size_t>(model_->units()));
  pass->saved_.resize(pass->inputs_.size());
  const offload::SplitProgram passes = run_.passes(how.has_backward);
  run_.expect_passes(passes, how.has_backward);
  Computation computation(*this, *pass, {.keeps = how.has_backward && how.keeps});
  run_.engine().run(passes.program, computation, 0, passes.backward);
  return pass;
}

void FamilyPass::backward(MicroBatchPass& pass, double scale) {
  const at::NoGradGuard no_tape;
  TORCH_CHECK_VALUE(std::exchange(pass.has_backward_, false),
                    "a loss of an evaluation, or whose backward has been, has no gradient");
  run_.release_all();
  run_.expect_backward();
  // If no target counts, the loss is NaN and its gradient zero, as in PyTorch.
  const double divisor = pass.batch_.divisor;
  Computation computation(*this, pass, {.scale = divisor == 0 ? 0 : scale / divisor});
  const offload::SplitProgram passes = run_.passes(/*has_backward=*/true);
  run_.engine().run(passes.program, computation, passes.backward, passes.program.size());
}

at::Tensor FamilyPass::logits(const MicroBatchPass& pass) {
  class Logits final : public Passes {
   public:
    Logits(const Model& model, const at::Tensor& input) : model_(model), input_(input) {}
    void forward(int /*unit*/, const UnitViews& /*views*/) override {}
    void head(int /*unit*/, const UnitViews& views) override {
      logits = model_.head().logits(views, input_, input_.size(1));
    }
    at::Tensor logits;

   private:
    const Model& model_;
    const at::Tensor& input_;
  };
  const at::NoGradGuard no_tape;
  run_.release_all();
  Logits passes(*model_, pass.inputs_.back());
  run_.engine().run(offload::head_pass(program_units(model_->layout())), passes);
  return passes.logits;
}

}  // namespace sluice::engine
