#include "engine/module/family_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/eq.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "aio/check.h"
#include "aio/log.h"
#include "aio/unix_time.h"
#include "engine/budget/configured_model.h"
#include "engine/device/gpu.h"
#include "engine/families/families.h"
#include "engine/families/make_model.h"
#include "engine/plan/report/plan_report.h"
#include "engine/plan/run_plan.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kMostUnasked = 4096;  // tokens in a row on a GPU, if no length is configured

// The module's name of a family's parameter, in a module with a head.
std::string module_name(const ParameterNames& names, const std::string& name) {
  return name == names.head ? name : std::string(names.prefix) + name;
}

bool is_same(const ModelShape& one, const ModelShape& other) {
  return one.layers == other.layers && one.hidden == other.hidden && one.heads == other.heads &&
         one.context_tokens == other.context_tokens && one.vocab == other.vocab &&
         one.dropout == other.dropout && one.ffn() == other.ffn() && one.family == other.family &&
         one.numbers == other.numbers && one.lists == other.lists;
}

}  // namespace

Result<FamilyModel> FamilyModel::read(const std::string& text) {
  SLUICE_ASSIGN_OR_RETURN(HuggingFaceModel model, read_hugging_face_config(text));
  SLUICE_RETURN_IF_ERROR(validate(model.shape));
  if (!model.notes.empty()) return Error(ErrorCode::kInvalidArgument, model.notes.front());
  if (balance_coefficient(model.shape) > 0)
    return Error(ErrorCode::kInvalidArgument,
                 "its loss has the balance loss of experts (output_router_logits, "
                 "router_aux_loss_coef), which the engine's passes of a module leave out");
  FamilyModel family(std::move(model.shape));
  if (!is_same(family.configured({}, {.length = true}).model.shape(), family.shape_))
    return Error(ErrorCode::kInvalidArgument, "a configuration cannot describe its sizes");
  return family;
}

ModelLayout FamilyModel::named(const ModelOptions& options) const {
  const ParameterNames& names = family_of(shape_).parameter_names(shape_);
  const auto whole = std::make_shared<const ModelLayout>(model_layout(options));
  const ModelLayout& layout = *whole;
  std::vector<ModelLayout::Unit> units;
  for (int unit = 0; unit < layout.units(); ++unit) {
    UnitLayout own = layout.layout(unit);
    for (ParameterSpec& parameter : own.parameters)
      parameter.name = module_name(names, parameter.name);
    // The layout that has it keeps it alive.
    units.push_back({.kind = std::shared_ptr<const UnitKind>(whole, &layout.kind(unit)),
                     .layout = std::move(own),
                     .borrowed = layout.borrowed(unit)});
  }
  return {{.hidden = layout.hidden(), .vocab = layout.vocab()}, std::move(units)};
}

std::vector<ModuleUnit> FamilyModel::units() const {
  const ModuleLayout layout = ModuleLayout::of_family(named({.shape = shape_}));
  std::vector<ModuleUnit> units;
  units.reserve(static_cast<std::size_t>(layout.units()));
  for (int unit = 0; unit < layout.units(); ++unit) units.push_back(layout.described(unit));
  return units;
}

config::Config FamilyModel::configured(config::Config config, const Asked& asked) const {
  config::Model& model = config.model;
  model.path.clear();
  model.init_from.clear();
  model.preset = config::kCustomPreset;
  model.family = shape_.family;
  model.layers = shape_.layers;
  model.hidden = shape_.hidden;
  model.heads = shape_.heads;
  model.context_tokens = shape_.context_tokens;
  model.vocab = shape_.vocab;
  model.dropout = shape_.dropout;
  model.ffn_multiplier = static_cast<double>(shape_.ffn()) / static_cast<double>(shape_.hidden);
  model.numbers.clear();
  for (const auto& [name, value] : shape_.numbers) model.numbers[name] = value;
  model.lists = shape_.lists;
  if (!asked.length) {
    config.data.sequence_tokens = asked.on_gpu ? std::min(shape_.context_tokens, kMostUnasked) : 1;
  }
  // One micro-batch at a time, and its unit inputs stay on the compute device.
  config.placement.wave_micro_batches = 1;
  config.placement.unit_inputs_to_cpu = Tristate::kOff;
  config.placement.unit_inputs_to_nvme = Tristate::kOff;
  // Matches the passes of sluice/_native.py. On a GPU the planner chooses if no block is
  // checkpointed.
  if (config.placement.recompute == Tristate::kAuto && (asked.checkpoints || !asked.on_gpu))
    config.placement.recompute = asked.checkpoints ? Tristate::kOn : Tristate::kOff;
  return config;
}

ModelOptions FamilyModel::options(const config::Config& config) const {
  return configured_model(config, uses_cuda(config));
}

ModuleLayout FamilyModel::layout(const config::Config& config) const {
  ModelLayout layout = named(options(config));
  // Code that reads parameters may keep this unit acquired together with a block. With several
  // ranks the host gathers all other units in one shared buffer.
  if (!uses_cuda(config)) layout.keep_acquired(0);
  return ModuleLayout::of_family(std::move(layout));
}

Result<RunPlan> FamilyModel::plan(const config::Config& config, const Asked& asked,
                                  PlanRunOptions options,
                                  std::vector<std::string>& assumptions) const {
  config::Config whole = config;
  whole.optimizer.groups.clear();  // groups refer to the module's names, and change no size
  if (!asked.length) {
    whole.data.sequence_tokens =
        std::min(shape_.context_tokens, asked.on_gpu ? kMostUnasked : kAssumedTokens);
    assumptions = {"rows are assumed to have " + std::to_string(whole.data.sequence_tokens) +
                   " tokens (data.sequence_length)"};
  }
  const std::uint64_t copy =
      checkpoint_copy_bytes(config, named({.shape = shape_}), options.ranks.world);
  options.outside.bytes.cpu += copy;
  options.outside.at_most.cpu += copy;
  options.first_stays_acquired = !asked.on_gpu;
  options.names = &kModuleNames;
  SLUICE_ASSIGN_OR_RETURN(RunPlan plan, plan_run(whole, options));
  if (copy > 0) plan.memory.host.push_back(checkpoint_copy_line(copy));
  return plan;
}

Result<ModulePlacement> FamilyModel::places(const config::Config& config, const Asked& asked,
                                            Communicator& link,
                                            const std::string& cache_path) const {
  ModulePlacement made;
  if (!asked.on_gpu && !has_choice(config, asked.on_gpu)) return made;
  const std::int64_t now_s = unix_s_now();
  SLUICE_ASSIGN_OR_RETURN(FirstRankPlan of_first,
                          first_rank_plan(link, config, {.cache_path = cache_path, .unix_s = now_s},
                                          [&](const std::optional<MeasuredLink>& measured) {
                                            return plan(config, asked,
                                                        {.cache_path = cache_path,
                                                         .unix_s = now_s,
                                                         .ranks = link.topology(),
                                                         .link = measured},
                                                        made.assumptions);
                                          }));
  made.places = std::move(of_first.places);
  if (!of_first.plan) return made;
  if (of_first.plan->placement.writes_too_much)
    return Error(ErrorCode::kOutOfMemory, does_not_fit(config, *of_first.plan));
  if (of_first.plan->placement.fits) {
    made.predicted_step_s = of_first.plan->placement.prediction.step_s;
    made.prediction = prediction_json(*of_first.plan);
  } else {
    log::warning("the planner finds no placement that fits and uses the one that lacks the least");
  }
  return made;
}

at::Tensor FamilyModel::logits(const std::vector<std::vector<at::Tensor>>& values,
                               const at::Tensor& tokens) const {
  const at::NoGradGuard no_tape;
  const std::unique_ptr<Model> model = make_model({.shape = shape_});
  TORCH_CHECK_VALUE(static_cast<int>(values.size()) == model->units(), "the model has ",
                    model->units(), " units, and values are given of ", values.size());
  std::vector<UnitViews> views(values.size());
  for (std::size_t unit = 0; unit < values.size(); ++unit)
    for (const at::Tensor& value : values[unit]) views[unit].append(value);
  at::Tensor flow = tokens;
  for (int unit = 0; unit < model->head_index(); ++unit)
    flow = model->unit(unit).forward({.unit = unit, .training = false},
                                     views[static_cast<std::size_t>(unit)], flow, nullptr);
  std::vector<const UnitViews*> lenders;
  for (const int lender : model->layout().lenders(model->head_index()))
    lenders.push_back(&views[static_cast<std::size_t>(lender)]);
  return model->head().logits(
      with_borrowed(model->layout(), model->head_index(), views.back(), lenders), flow,
      tokens.size(1));
}

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
