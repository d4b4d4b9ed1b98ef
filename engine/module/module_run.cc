#include "engine/module/module_run.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "aio/log.h"
#include "aio/real_file_system.h"
#include "aio/units.h"
#include "engine/device/gpu.h"
#include "engine/observe/process_memory.h"
#include "engine/preflight/host_shares.h"
#include "engine/preflight/preflight.h"
#include "engine/run/stored_state.h"
#include "engine/step/cuda_step.h"
#include "engine/step/train_error.h"
#include "offload/step_program.h"

namespace sluice::engine {
namespace {

// Whether units share GPU slots.
bool has_slots(const MemoryPlan& plan, const ModelLayout& model) {
  for (int unit = 0; unit < model.units(); ++unit)
    if (model.layout(unit).elements > 0 && !plan.state.residency.resident(unit)) return true;
  return false;
}

// Called before any memory is allocated.
Status check_machine(const config::Config& config, const MemoryPlan& plan, int local_world) {
  const MachineFacts facts = facts_of_rank(machine_facts(config), local_world);
  aio::RealFileSystem files;
  const PreflightReport report = preflight(config, plan_of_host(plan, local_world), facts, files);
  for (const std::string& warning : report.warnings) log::warning(warning);
  return report.verdict;
}

Status check_config(const config::Config& config) {
  const auto refused = [](const std::string& what) {
    return Error(ErrorCode::kUnsupported, what + ", which the Python package does not support yet");
  };
  if (config.lora.rank > 0)
    return refused(
        "recipe.lora is not supported here: create the adapters with PEFT in the module, and its "
        "frozen parameters are streamed");
  if (config.run.checkpoint_in_place)
    return Error(ErrorCode::kUnsupported,
                 "run.checkpoint_in_place is for sluice train and sluice.Run, and a module's "
                 "checkpoints are files: leave it out");
  return {};
}

}  // namespace

ModuleRun::ModuleRun(const config::Config& config, ModuleLayout layout, MemoryPlan plan)
    : config_(config),
      layout_(std::move(layout)),
      plan_(std::move(plan)),
      rules_(update_rules(config, plan_.state.settings)),
      units_(static_cast<std::size_t>(layout_.units())) {}

Result<std::unique_ptr<ModuleRun>> ModuleRun::create(const config::Config& given,
                                                     ModuleLayout layout,
                                                     const Environment& environment) {
  Communicator* const link = environment.link;
  SLUICE_RETURN_IF_ERROR(check_config(given));
  const int local_world = link->world_size(ProcessGroup::kNode);
  const int stages =  // of which this host has ranks
      environment.stages == nullptr ? 1 : environment.stages->world_size(ProcessGroup::kNode);
  config::Config of_stage = given;
  of_stage.budget = budget_of_rank(given.budget, stages);
  config::Config config = of_stage;  // for this rank
  config.budget = budget_of_rank(of_stage.budget, local_world);
  ModulePlanOptions options = environment.plan;
  options.link = link;
  SLUICE_ASSIGN_OR_RETURN(ModulePlan plan, plan_module(of_stage, layout, options));
  SLUICE_RETURN_IF_ERROR(check_machine(config, plan.trained, local_world * stages));
  std::unique_ptr<ModuleRun> run(new ModuleRun(config, std::move(layout), std::move(plan.trained)));
  run->stages_ = environment.stages;
  run->frozen_plan_ = std::move(plan.frozen);
  run->predicted_step_s_ = plan.said.predicted_step_s;
  run->prediction_ = std::move(plan.said.prediction);
  run->assumptions_ = std::move(plan.said.assumptions);
  SLUICE_RETURN_IF_ERROR(run->make_parts(environment));
  return run;
}

ModuleRun::~ModuleRun() {
  copies_.reset();  // a save of several ranks that is not complete: the others are not asked
  checkpoints_.reset();
  for (Unit& unit : units_) unit.views.clear();
}

Status ModuleRun::make_parts(const Environment& environment) {
  Resources::Environment made{
      .use = Resources::Use::kPasses, .link = environment.link, .workers = environment.workers};
  if (frozen_plan_) made.frozen = {.plan = &*frozen_plan_, .model = &layout_.frozen()};
  SLUICE_ASSIGN_OR_RETURN(parts_, Resources::create(config_, plan_, model(), made));
  engine_ = std::make_unique<StepEngine>(*parts_, plan_.fetching.prefetch_units);
  SLUICE_ASSIGN_OR_RETURN(const TrainState state, initial_state(rules_));
  update_ = std::make_unique<StepUpdate>(
      *parts_,
      StepUpdate::Options{.rules = rules_, .in_background = config_.placement.overlap_update},
      state);
  // Buffers or slots reserved for others: the unit outside of all blocks and the update thread; on
  // the GPU, the slots being copied into and just used.
  constexpr int kOthers = 2;
  const bool on_nvme =
      plan_.params.uses_nvme() || (frozen_plan_ && frozen_plan_->params.uses_nvme());
  most_acquired_ = layout_.units();
  if (plan_.cuda &&
      (has_slots(plan_, model()) || (frozen_plan_ && has_slots(*frozen_plan_, layout_.frozen()))))
    most_acquired_ = 1;
  if (on_nvme && !plan_.cuda)
    most_acquired_ = std::max(plan_.params.options.cache_buffers - kOthers, 1);
  if (has_other_ranks() && !plan_.cuda) most_acquired_ = 1;  // gathered in one buffer
  return {};
}

void ModuleRun::acquire(int unit) {
  if (at(unit).acquired) return;
  if (has_trained(unit)) {
    check_ends(unit);
    throw_if_error(engine_->acquire(unit));
  }
  if (has_frozen(unit)) {
    const Status there = parts_->frozen()->units().acquire(unit).status();
    if (!there.ok() && has_trained(unit)) engine_->release(unit);
    throw_if_error(there);
  }
  at(unit).acquired = true;
}

void ModuleRun::release(int unit) {
  if (!at(unit).acquired) return;
  if (has_trained(unit)) engine_->release(unit);
  if (has_frozen(unit)) parts_->frozen()->units().release(unit);
  at(unit).acquired = false;
}

void ModuleRun::prefetch(int unit) {
  if (at(unit).acquired) return;
  if (has_trained(unit)) engine_->prefetch(unit);
  if (has_frozen(unit)) throw_if_error(parts_->frozen()->units().prefetch(unit));
}

void ModuleRun::expect(const std::vector<int>& passes, bool trains) {
  std::vector<int> order;
  const auto add_updates = [&] {
    for (int unit = 0; unit < layout_.units(); ++unit) order.push_back(unit);
  };
  // The previous step's updates continue during the first passes.
  if (micro_batch_ == 0 && train_state().applied_step > 0) add_updates();
  order.insert(order.end(), passes.begin(), passes.end());
  if (trains && micro_batch_ + 1 == micro_batches()) add_updates();
  expect_on_host(parts_->parameters().trained(), order);
  if (parts_->frozen() != nullptr) expect_on_host(parts_->frozen()->trained(), passes);
}

// Opens the sums of a unit for the current micro-batch.
const UnitViews& ModuleRun::begin(int unit) {
  // The unit's update may still read the last step's gradient.
  if (micro_batch_ == 0 && !at(unit).begun) throw_if_error(engine_->await_update(unit));
  engine_->open_gradient(unit);
  if (at(unit).begun) return parts_->gradients().target_again(unit, micro_batch_);
  at(unit).begun = true;
  const GradientSink::Target target = parts_->gradients().target(unit, micro_batch_);
  at(unit).summed.assign(model().layout(unit).parameters.size(), !target.overwrites);
  return target.sums;
}

// Zeroes the gradients of parameters that had none in the current micro-batch, and closes the unit.
void ModuleRun::complete(int unit, const UnitViews& sums) {
  for (std::size_t i = 0; i < at(unit).summed.size(); ++i)
    if (!at(unit).summed[i]) sums[static_cast<int>(i)].zero_();
  parts_->gradients().added(unit, micro_batch_);
  engine_->close_gradient(unit, /*sends=*/in_last_micro_batch());
}

void ModuleRun::begin_backward() {
  expect_backward();
  if (awaits_update_) throw_if_error(parts_->optimizer().prefetch());
}

void ModuleRun::expect_backward() {
  awaits_update_ = in_last_micro_batch();
  if (micro_batch_ == 0) return;
  std::vector<int> order(static_cast<std::size_t>(model().units()));
  std::iota(order.rbegin(), order.rend(), 0);
  parts_->expect_gradients(order);
}

void ModuleRun::add(int unit, const std::vector<at::Tensor>& gradients, bool is_last) {
  const ModuleUnit& described = layout_.described(unit);
  const std::vector<ModuleParameter>& parameters = described.parameters;
  TORCH_CHECK_VALUE(gradients.size() == parameters.size(), "unit ", described.name, " has ",
                    parameters.size(), " parameters, and was given ", gradients.size(),
                    " gradients");
  TORCH_CHECK_VALUE(!is_complete(), "the step has all of its ", micro_batches(), " micro-batches");
  TORCH_CHECK_VALUE(!layout_.is_family(), "gradients of a family's model come from its own passes");
  if (at(unit).ended)
    throw TrainError("the gradient of unit " + described.name +
                     " comes in more parts than in the micro-batches before: it was complete");
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!gradients[i].defined()) continue;
    TORCH_CHECK_VALUE(gradients[i].sizes() == at::IntArrayRef(parameters[i].shape),
                      "the gradient of ", parameters[i].name, " has another shape");
    TORCH_CHECK_VALUE(layout_.parameter_index(unit, static_cast<int>(i)).trained,
                      parameters[i].name, " is frozen, and was given a gradient");
  }
  const at::NoGradGuard no_tape;
  is_touched_ = true;
  const UnitViews& sums = begin(unit);
  std::vector<at::Tensor> from;
  std::vector<at::Tensor> to;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const int parameter = layout_.parameter_index(unit, static_cast<int>(i)).parameter;
    const at::Tensor& sum = sums[parameter];
    at::Tensor gradient = gradients[i].reshape(sum.sizes());
    if (at(unit).summed[static_cast<std::size_t>(parameter)]) {
      sum.add_(gradient);
      continue;
    }
    at(unit).summed[static_cast<std::size_t>(parameter)] = true;
    from.push_back(std::move(gradient));
    to.push_back(sum);
  }
  if (!to.empty()) at::_foreach_copy_(to, from);  // one kernel for all of them
  // Several ranks exchange sums in one fixed order at the end of the micro-batch, whatever order
  // they were computed in.
  if (!is_last || has_other_ranks()) {
    engine_->keep_sum(unit);
    return;
  }
  at(unit).ended = true;
  complete(unit, sums);
}

// Every unit is opened, also the last one, which is not described: a step's gradients are complete
// when each unit's are.
void ModuleRun::end(int unit) {
  const bool described = unit < layout_.units();
  if (described) {
    at(unit).begun = at(unit).begun && !at(unit).ended;
    if (std::exchange(at(unit).ended, false)) return;
    complete(unit, begin(unit));
    at(unit).begun = false;
    return;
  }
  engine_->open_gradient(unit);
  parts_->gradients().target(unit, micro_batch_);
  parts_->gradients().added(unit, micro_batch_);
  engine_->close_gradient(unit, /*sends=*/in_last_micro_batch());
}

void ModuleRun::end_micro_batch() {
  TORCH_CHECK_VALUE(!is_complete(), "the step has all of its ", micro_batches(), " micro-batches");
  const at::NoGradGuard no_tape;
  is_touched_ = true;
  // In the order of backward: the head first.
  for (int unit = model().units() - 1; unit >= 0; --unit) end(unit);
  ++micro_batch_;
}

void ModuleRun::abandon_step() {
  if (!is_touched_) return;
  if (has_other_ranks()) {
    fail("rank " + std::to_string(ranks().part.rank) + " interrupted a step");
    return;
  }
  const at::NoGradGuard no_tape;
  micro_batch_ = 0;
  awaits_update_ = false;
  // The last step's update may still need its gradients. If it has failed, so will all later steps.
  if (!parts_->optimizer().drain().ok()) return;
  // No unit's gradient counts as complete from here on.
  const bool forgotten = parts_->gradients().forget();
  if (const int open = engine_->take_open_unit(); open >= 0 && !forgotten) put_away(open);
  for (int unit = model().units() - 1; unit >= 0; --unit) {
    if (!forgotten) {
      engine_->open_gradient(unit);
      parts_->gradients().target(unit, 0);
      put_away(unit);
    }
    if (unit < layout_.units()) at(unit).begun = at(unit).ended = false;
  }
  is_touched_ = false;
}

StepOutcome ModuleRun::step(const std::vector<double>& losses) {
  TORCH_CHECK_VALUE(is_complete(), "a step has ", micro_batches(), " micro-batches, and ",
                    micro_batch_, " have ended");
  for (int unit = 0; unit < layout_.units(); ++unit)
    TORCH_CHECK_VALUE(!at(unit).acquired, "unit ", layout_.described(unit).name,
                      " is in use: a step changes it");
  const at::NoGradGuard no_tape;
  StepOutcome outcome = update_->begin();
  check_order();
  const GradientTotals totals = over_stages(engine_->sum_gradients());
  outcome.grad_norm = std::sqrt(totals.square_sum) / outcome.loss_scale;
  const std::vector<double> of_all = value_or_throw(all_of_step(ranks(), plan_.sum_order, losses));
  for (const double loss : of_all) outcome.loss += loss / static_cast<double>(of_all.size());
  micro_batch_ = 0;
  is_touched_ = awaits_update_ = false;
  update_->end(totals, {.losses = [&] { return losses; }}, outcome);
  if (is_saved_) wait_for_saves_together();
  return outcome;
}

GpuUse ModuleRun::take_gpu_use() {
  GpuMonitor* const monitor = parts_->gpu_monitor();
  if (monitor == nullptr) return {};
  const GpuUse use = monitor->use();
  monitor->restart();
  return use;
}

void ModuleRun::drain() { throw_if_error(parts_->drain()); }

}  // namespace sluice::engine
