#include "engine/python/module_run.h"

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
#include "offload/step_program.h"

namespace sluice::engine {
namespace {

// Whether units share slots of the GPU.
bool has_slots(const MemoryPlan& plan, const ModelLayout& model) {
  for (int unit = 0; unit < model.units(); ++unit)
    if (model.layout(unit).elements > 0 && !plan.state.residency.resident(unit)) return true;
  return false;
}

// Before any memory is taken.
Status check_machine(const config::Config& config, const MemoryPlan& plan, int local_world) {
  const MachineFacts facts = facts_of_rank(machine_facts(config), local_world);
  aio::RealFileSystem files;
  const PreflightReport report = preflight(config, plan_of_host(plan, local_world), facts, files);
  for (const std::string& warning : report.warnings) log::warning(warning);
  return report.verdict;
}

Status check_config(const config::Config& config) {
  const auto refused = [](const std::string& what) {
    return Error(ErrorCode::kUnsupported, what + ", which the Python package does not do yet");
  };
  if (config.lora.rank > 0)
    return refused(
        "recipe.lora asks for adapters (PEFT makes them in the module: its frozen "
        "parameters are streamed)");
  return {};
}

}  // namespace

ModuleRun::ModuleRun(const config::Config& config, ModuleLayout layout, MemoryPlan plan,
                     const Environment& environment)
    : config_(config),
      layout_(std::move(layout)),
      plan_(std::move(plan)),
      rules_(update_rules(config, plan_.state.settings)),
      workers_(environment.workers),
      units_(static_cast<std::size_t>(layout_.units())),
      ranks_{.part = plan_.ranks, .link = environment.link} {}

Result<std::unique_ptr<ModuleRun>> ModuleRun::create(const config::Config& given,
                                                     ModuleLayout layout,
                                                     const Environment& environment) {
  Communicator* const link = environment.link;
  SLUICE_RETURN_IF_ERROR(check_config(given));
  const int local_world = link != nullptr ? link->world_size(ProcessGroup::kNode) : 1;
  config::Config config = given;  // of this rank
  config.budget = budget_of_rank(given.budget, local_world);
  ModulePlanOptions options = environment.plan;
  options.link = link;
  SLUICE_ASSIGN_OR_RETURN(ModulePlan plan, plan_module(given, layout, options));
  SLUICE_RETURN_IF_ERROR(check_machine(config, plan.trained, local_world));
  std::unique_ptr<ModuleRun> run(
      new ModuleRun(config, std::move(layout), std::move(plan.trained), environment));
  run->frozen_plan_ = std::move(plan.frozen);
  run->predicted_step_s_ = plan.said.predicted_step_s;
  run->prediction_ = std::move(plan.said.prediction);
  run->assumptions_ = std::move(plan.said.assumptions);
  SLUICE_ASSIGN_OR_RETURN(run->state_, initial_state(run->rules_));
  SLUICE_RETURN_IF_ERROR(run->make_parts());
  return run;
}

ModuleRun::~ModuleRun() {
  checkpoints_.reset();
  for (Unit& unit : units_) unit.views.clear();
  if (optimizer_) static_cast<void>(optimizer_->drain());  // the update's source is a member
  if (parameters_) parameters_->end_passes();
  if (frozen_) frozen_->end_passes();
  const Status removed = optimizer_ ? optimizer_->remove() : Status();
  if (!removed.ok()) log::warning(removed.error().message());
  if (!gradient_places_) return;
  update_units_.reset();  // has a lease of a unit whose update failed
  gradients_.reset();     // likewise, whose backward did
  const Status emptied = gradient_places_->remove();
  if (!emptied.ok()) log::warning(emptied.error().message());
}

// A launcher may have left LibTorch one thread (torchrun does): what changes no bit may have more.
int ModuleRun::worker_threads() const {
  const int ranks = ranks_.is_alone() ? 1 : ranks_.link->world_size(ProcessGroup::kNode);
  return workers_ > 0 ? std::max(workers_ / ranks, 1) : engine::worker_threads(config_, ranks);
}

Status ModuleRun::make_parts() {
  const int threads = worker_threads();
  if (plan_.cuda && config_.budget.gpu_gib) {
    const auto cap = static_cast<std::uint64_t>(*config_.budget.gpu_gib * kGiB);
    const std::uint64_t beside = kCudaContextBytes + (ranks_.is_alone() ? 0 : kNcclBytes);
    SLUICE_RETURN_IF_ERROR(limit_cuda_memory(cap > beside ? cap - beside : 0));
  }
  if (plan_.cuda)
    gpu_monitor_ = std::make_unique<GpuMonitor>(GpuMonitor::Options{.bus_id = cuda_bus_id()});
  SLUICE_ASSIGN_OR_RETURN(drives_, open_drives(config_, &io_trace_));
  SLUICE_RETURN_IF_ERROR(cuda_ranks_.connect(plan_, ranks_));
  SLUICE_ASSIGN_OR_RETURN(update_executor_, aio::make_executor(threads));
  SLUICE_ASSIGN_OR_RETURN(gradient_executor_, aio::make_executor(threads));
  SLUICE_ASSIGN_OR_RETURN(parameters_, ModelParameters::create(plan_, model(),
                                                               {.drives = &drives_,
                                                                .trace = &trace_,
                                                                .ranks = ranks_,
                                                                .cuda_ranks = cuda_ranks_.get()}));
  if (frozen_plan_) {
    SLUICE_ASSIGN_OR_RETURN(
        frozen_, ModelParameters::create(*frozen_plan_, layout_.frozen(), {.drives = &drives_}));
  }
  SLUICE_RETURN_IF_ERROR(make_optimizer());
  SLUICE_RETURN_IF_ERROR(make_gradients());
  update_units_ = std::make_unique<UnitBinding>(
      UnitBinding::Places{&parameters_->trained(), &parameters_->units(), gradients_.get()},
      UnitBinding::Access::kUpdate, model());
  // Beside the unit outside of all blocks, the thread that updates, and on the GPU the slots that
  // are copied into and were just used.
  constexpr int kOthers = 2;
  const bool on_nvme =
      plan_.params.uses_nvme() || (frozen_plan_ && frozen_plan_->params.uses_nvme());
  most_acquired_ = layout_.units();
  if (plan_.cuda &&
      (has_slots(plan_, model()) || (frozen_plan_ && has_slots(*frozen_plan_, layout_.frozen()))))
    most_acquired_ = 1;
  if (on_nvme && !plan_.cuda)
    most_acquired_ = std::max(plan_.params.options.cache_buffers - kOthers, 1);
  if (!ranks_.is_alone() && !plan_.cuda) most_acquired_ = 1;  // gathered to one place
  return {};
}

Status ModuleRun::make_optimizer() {
  if (plan_.state.gpu_bytes > 0) {
    SLUICE_ASSIGN_OR_RETURN(
        gpu_tier_, make_cuda_state_tier(plan_.state.gpu_bytes, stream_of(cuda_ranks_.get())));
  }
  SLUICE_ASSIGN_OR_RETURN(optimizer_,
                          offload::OptimizerOffloader::create(optimizer_options(plan_),
                                                              {.reads = drives_.reads.get(),
                                                               .writes = drives_.writes.get(),
                                                               .executor = update_executor_.get(),
                                                               .device = gpu_tier_.get()}));
  return {};
}

Status ModuleRun::make_gradients() {
  SLUICE_ASSIGN_OR_RETURN(gradient_places_, make_gradient_places(plan_, drives_));
  SLUICE_ASSIGN_OR_RETURN(gradients_, make_gradient_sink(plan_, model(),
                                                         {.executor = gradient_executor_.get(),
                                                          .places = gradient_places_.get(),
                                                          .ranks = ranks_,
                                                          .link = cuda_ranks_.get(),
                                                          .trace = &trace_}));
  return {};
}

RunState ModuleRun::own_state() const {
  return {.optimizer = optimizer_.get(),
          .params = &parameters_->trained(),
          .units = &parameters_->units(),
          .model = &model(),
          .ranks = ranks_.part};
}

void ModuleRun::acquire(int unit) {
  if (at(unit).acquired) return;
  if (has_trained(unit)) {
    check_ends(unit);
    must(optimizer_->wait_ready(unit));
    note_gather(unit);
    at(unit).slot = must(parameters_->units().acquire(unit));
  }
  if (has_frozen(unit)) {
    const Status there = frozen_->units().acquire(unit).status();
    if (!there.ok() && has_trained(unit)) parameters_->units().release(unit);
    must(there);
  }
  at(unit).acquired = true;
}

void ModuleRun::release(int unit) {
  if (!at(unit).acquired) return;
  if (has_trained(unit)) parameters_->units().release(unit);
  if (has_frozen(unit)) frozen_->units().release(unit);
  at(unit).acquired = false;
}

void ModuleRun::prefetch(int unit) {
  if (at(unit).acquired) return;
  if (has_trained(unit) && parameters_->units().prefetch_gathers()) {
    // Whether an update is done is not for each rank to find.
    must(optimizer_->wait_ready(unit));
    note_gather(unit);
    must(parameters_->units().prefetch(unit));
  } else if (has_trained(unit) && optimizer_->is_ready(unit)) {
    must(parameters_->units().prefetch(unit));
  }
  if (has_frozen(unit)) must(frozen_->units().prefetch(unit));
}

void ModuleRun::expect(const std::vector<int>& passes, bool trains) {
  std::vector<int> order;
  const auto add_updates = [&] {
    for (int unit = 0; unit < layout_.units(); ++unit) order.push_back(unit);
  };
  // The previous step's updates go on under the first passes.
  if (micro_batch_ == 0 && state_.applied_step > 0) add_updates();
  order.insert(order.end(), passes.begin(), passes.end());
  if (trains && micro_batch_ + 1 == micro_batches()) add_updates();
  expect_on_host(parameters_->trained(), order);
  if (frozen_) expect_on_host(frozen_->trained(), passes);
}

// The sums of a unit, opened for what the micro-batch that goes on adds to it.
const UnitViews& ModuleRun::begin(int unit) {
  // Its last gradient may still be needed.
  if (micro_batch_ == 0 && !at(unit).begun) must(optimizer_->wait_ready(unit));
  must(gradients_->open(unit));
  if (at(unit).begun) return gradients_->target_again(unit, micro_batch_);
  at(unit).begun = true;
  const GradientSink::Target target = gradients_->target(unit, micro_batch_);
  at(unit).summed.assign(model().layout(unit).parameters.size(), !target.overwrites);
  return target.sums;
}

// What had no gradient in the micro-batch that goes on.
void ModuleRun::complete(int unit, const UnitViews& sums) {
  for (std::size_t i = 0; i < at(unit).summed.size(); ++i)
    if (!at(unit).summed[i]) sums[static_cast<int>(i)].zero_();
  gradients_->added(unit, micro_batch_);
  must(in_last_micro_batch() ? gradients_->finish(unit) : gradients_->keep(unit));
}

void ModuleRun::begin_backward() {
  awaits_update_ = in_last_micro_batch();
  if (awaits_update_) must(optimizer_->prefetch());
  if (micro_batch_ > 0) expect_gradients(/*of_update=*/false);
}

void ModuleRun::expect_gradients(bool of_update) {
  if (!gradient_places_) return;
  std::vector<int> order(static_cast<std::size_t>(model().units()));
  std::iota(order.begin(), order.end(), 0);
  if (!of_update) std::reverse(order.begin(), order.end());
  expect_on_host(*gradient_places_, order);
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
    TORCH_CHECK_VALUE(layout_.place(unit, static_cast<int>(i)).trained, parameters[i].name,
                      " is frozen, and was given a gradient");
  }
  const at::NoGradGuard no_tape;
  is_touched_ = true;
  const UnitViews& sums = begin(unit);
  std::vector<at::Tensor> from;
  std::vector<at::Tensor> to;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const int parameter = layout_.place(unit, static_cast<int>(i)).parameter;
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
  // What several ranks exchange they exchange in one order, whatever came first on each: at the end
  // of the micro-batch.
  if (!is_last || !ranks_.is_alone()) {
    must(gradients_->keep(unit));
    return;
  }
  at(unit).ended = true;
  complete(unit, sums);
}

// All units are opened, and what none is described for as well: a step's gradients are complete
// when each of them is.
void ModuleRun::end(int unit) {
  const bool described = unit < layout_.units();
  if (described) {
    at(unit).begun = at(unit).begun && !at(unit).ended;
    if (std::exchange(at(unit).ended, false)) return;
    complete(unit, begin(unit));
    at(unit).begun = false;
    return;
  }
  must(gradients_->open(unit));
  gradients_->target(unit, micro_batch_);
  gradients_->added(unit, micro_batch_);
  must(in_last_micro_batch() ? gradients_->finish(unit) : gradients_->keep(unit));
}

void ModuleRun::end_micro_batch() {
  TORCH_CHECK_VALUE(!is_complete(), "the step has all of its ", micro_batches(), " micro-batches");
  const at::NoGradGuard no_tape;
  is_touched_ = true;
  // As backward ends: the head first.
  for (int unit = model().units() - 1; unit >= 0; --unit) end(unit);
  ++micro_batch_;
}

void ModuleRun::abandon_step() {
  if (!is_touched_) return;
  if (!ranks_.is_alone()) {
    fail("rank " + std::to_string(ranks_.part.rank) + " left a step in its middle");
    return;
  }
  const at::NoGradGuard no_tape;
  micro_batch_ = 0;
  awaits_update_ = false;
  // The last step's update may still need its gradients; where it has failed, so will all to come.
  if (!optimizer_->drain().ok()) return;
  // None of them counts as complete any more.
  const bool forgotten = gradients_->forget();
  if (const int open = std::exchange(open_unit_, -1); open >= 0 && !forgotten) put_away(open);
  for (int unit = model().units() - 1; unit >= 0; --unit) {
    if (!forgotten) {
      must(gradients_->open(unit));
      gradients_->target(unit, 0);
      put_away(unit);
    }
    if (unit < layout_.units()) at(unit).begun = at(unit).ended = false;
  }
  is_touched_ = false;
}

double ModuleRun::learning_rate() const {
  return config::learning_rate(rules_.schedule, state_.applied_step);
}

StepOutcome ModuleRun::step(const std::vector<double>& losses) {
  TORCH_CHECK_VALUE(is_complete(), "a step has ", micro_batches(), " micro-batches, and ",
                    micro_batch_, " have ended");
  for (int unit = 0; unit < layout_.units(); ++unit)
    TORCH_CHECK_VALUE(!at(unit).acquired, "unit ", layout_.described(unit).name,
                      " is in use: a step changes it");
  const at::NoGradGuard no_tape;
  StepOutcome outcome{.learning_rate = learning_rate(), .loss_scale = loss_scale()};
  check_order();
  const GradientTotals totals = must(gradients_->totals());
  outcome.grad_norm = std::sqrt(totals.square_sum) / outcome.loss_scale;
  const std::vector<double> of_all = must(all_of_step(ranks_, plan_.sum_order, losses));
  for (const double loss : of_all) outcome.loss += loss / static_cast<double>(of_all.size());
  micro_batch_ = 0;
  is_touched_ = awaits_update_ = false;
  if (!totals.finite) {
    outcome.skipped = true;
    outcome.warning = skip_step(rules_,
                                {.unit = model().layout(*totals.first_not_finite).name,
                                 .suspects =
                                     [&] {
                                       std::string text = "losses of its micro-batches:";
                                       for (const double loss : losses)
                                         text += " " + std::to_string(loss);
                                       return text;
                                     }},
                                state_);
    return outcome;
  }
  make_scalars(rules_, state_, outcome.grad_norm, scalars_);
  count_applied(rules_, state_);
  expect_gradients(/*of_update=*/true);
  must(optimizer_->step({.groups = scalars_,
                         .source = update_units_.get(),
                         .background = config_.placement.overlap_update,
                         .number = state_.applied_step}));
  parameters_->units().changed();
  return outcome;
}

ModuleRun::Figures ModuleRun::figures() const {
  const offload::ParamStats params = parameters_->stats();
  const offload::ParamStats frozen = frozen_ ? frozen_->stats() : offload::ParamStats{};
  const swap::SwapStats state = optimizer_->stats();
  const offload::ParamStats gradients =
      gradient_places_ ? gradient_places_->stats() : offload::ParamStats{};
  const auto asked = process_memory();
  const ProcessMemory memory = asked.ok() ? *asked : ProcessMemory();
  return {.nvme_read_bytes =
              params.bytes_read + frozen.bytes_read + state.bytes_read + gradients.bytes_read,
          .nvme_write_bytes = params.bytes_written + frozen.bytes_written + state.bytes_written +
                              gradients.bytes_written,
          .h2d_bytes = parameters_->units().copied_bytes() +
                       (frozen_ ? frozen_->units().copied_bytes() : 0) +
                       gradients_->fetched_bytes(),
          .d2h_bytes = gradients_->copied_bytes(),
          .gpu_peak_bytes = plan_.cuda ? cuda_peak_bytes() : 0,
          .pinned_bytes =
              std::max(memory.pinned_bytes, plan_.cuda ? cuda_pinned_bytes() : std::uint64_t{0}),
          .resident_bytes = memory.resident_bytes};
}

GpuUse ModuleRun::take_gpu_use() {
  if (!gpu_monitor_) return {};
  const GpuUse use = gpu_monitor_->use();
  gpu_monitor_->restart();
  return use;
}

void ModuleRun::drain() {
  must(optimizer_->drain());
  must(parameters_->trained().drain());
}

}  // namespace sluice::engine
