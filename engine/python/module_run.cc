#include "engine/python/module_run.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <span>
#include <utility>

#include "aio/check.h"
#include "aio/log.h"
#include "aio/real_file_system.h"
#include "aio/units.h"
#include "engine/config/stored_config.h"
#include "engine/device/gpu.h"
#include "engine/exchange/stored_shape.h"
#include "engine/preflight/preflight.h"
#include "engine/run/load_parameters.h"
#include "engine/run/stored_state.h"
#include "engine/step/cuda_step.h"
#include "engine/weights/safetensors_writer.h"
#include "offload/step_program.h"

namespace sluice::engine {
namespace {

// Names are the module's own, everywhere.
constexpr ParameterNames kModuleNames = {};
constexpr const char* kModuleFamily = "module";
constexpr const char* kUsersData = "python";  // in place of a data order: that is the user's

Result<MemoryPlan> plan_trained(const config::Config& config, const ModuleLayout& layout) {
  return plan_memory(config, layout.trained(),
                     {.purpose = RunPurpose::kTraining,
                      .on_gpu = uses_cuda(config),
                      // Passes come micro-batch by micro-batch.
                      .wave_micro_batches = 1,
                      .names = &kModuleNames,
                      .keeps_sums = true});
}

// Nothing but parameters that come and go.
Result<MemoryPlan> plan_frozen(const config::Config& config, const ModuleLayout& layout) {
  SLUICE_ASSIGN_OR_RETURN(MemoryPlan plan, plan_memory(config, layout.frozen(),
                                                       {.purpose = RunPurpose::kEvaluation,
                                                        .on_gpu = uses_cuda(config),
                                                        .names = &kModuleNames}));
  plan.params.options.store.run += "-frozen";
  plan.params.options.store.label = "frozen parameters";
  return plan;
}

// What is frozen takes its part of the same tiers.
void add_frozen_lines(const MemoryPlan& frozen, MemoryPlan& plan) {
  const auto add = [](const std::vector<MemoryLine>& from, std::vector<MemoryLine>& to) {
    for (MemoryLine line : from) {
      if (line.use != MemoryUse::kParameters || line.bytes == 0) continue;
      line.what = "frozen " + line.what;
      to.push_back(std::move(line));
    }
  };
  add(frozen.host, plan.host);
  add(frozen.gpu, plan.gpu);
  add(frozen.nvme, plan.nvme);
}

// Before any memory is taken.
Status check_machine(const config::Config& config, const MemoryPlan& plan) {
  aio::RealFileSystem files;
  const PreflightReport report = preflight(config, plan, machine_facts(config), files);
  for (const std::string& warning : report.warnings) log::warning(warning);
  return report.verdict;
}

Status check_config(const config::Config& config) {
  const auto refused = [](const std::string& what) {
    return Error(ErrorCode::kUnsupported, what + ", which the Python package does not do yet");
  };
  if (config.world_size != 1) return refused("several ranks are asked for");
  if (config.lora.rank > 0)
    return refused(
        "recipe.lora asks for adapters (PEFT makes them in the module: its frozen "
        "parameters are streamed)");
  return {};
}

// Elements [first, first + to.size()) of a tensor, as fp32.
Status copy_values(const at::Tensor& tensor, const std::string& name, std::uint64_t first,
                   std::span<float> to) {
  const at::Tensor values =
      tensor.reshape(-1)
          .slice(0, static_cast<std::int64_t>(first), static_cast<std::int64_t>(first + to.size()))
          .to(at::kCPU, at::kFloat)
          .contiguous();
  std::memcpy(to.data(), values.const_data_ptr<float>(), to.size_bytes());
  if (std::all_of(to.begin(), to.end(), [](float value) { return std::isfinite(value); }))
    return {};
  return Error(ErrorCode::kInvalidArgument,
               "parameter " + name + " has a value that is not finite: nothing begins with that");
}

std::uint64_t elements_of(const ModuleParameter& parameter) {
  std::uint64_t elements = 1;
  for (const std::int64_t size : parameter.shape) elements *= static_cast<std::uint64_t>(size);
  return elements;
}

// Values of described parameters by what a layout calls them, one unit's at a time.
class DescribedValues {
 public:
  DescribedValues(const ModuleLayout& layout, const ModuleRun::UnitValues& values)
      : layout_(layout), values_(values) {}

  Status read(int unit, const std::string& name, std::uint64_t first, std::span<float> to) {
    if (unit != unit_) {
      tensors_.clear();
      tensors_ = values_(unit);
      unit_ = unit;
    }
    const std::vector<ModuleParameter>& parameters = layout_.described(unit).parameters;
    if (tensors_.size() != parameters.size())
      return Error(ErrorCode::kInvalidArgument, "unit " + layout_.described(unit).name + " has " +
                                                    std::to_string(parameters.size()) +
                                                    " parameters, and was given " +
                                                    std::to_string(tensors_.size()) + " tensors");
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].name != name) continue;
      if (static_cast<std::uint64_t>(tensors_[i].numel()) != elements_of(parameters[i]))
        return Error(ErrorCode::kInvalidArgument, "parameter " + name + " was given " +
                                                      std::to_string(tensors_[i].numel()) +
                                                      " values, and has another shape");
      try {
        return copy_values(tensors_[i], name, first, to);
      } catch (const std::exception& error) {  // the thread is an executor's
        return Error(ErrorCode::kInternal, "parameter " + name + ": " + error.what());
      }
    }
    return Error(ErrorCode::kInternal, "no parameter has the name " + name);
  }

 private:
  const ModuleLayout& layout_;
  const ModuleRun::UnitValues& values_;
  int unit_ = -1;
  std::vector<at::Tensor> tensors_;
};

int unit_of(const ModelLayout& model, const ParameterSpec& parameter) {
  for (int unit = 0; unit < model.units(); ++unit) {
    const std::vector<ParameterSpec>& of_unit = model.layout(unit).parameters;
    if (!of_unit.empty() && &parameter >= of_unit.data() &&
        &parameter < of_unit.data() + of_unit.size())
      return unit;
  }
  SLUICE_CHECK(false, "a parameter of the model");
  return 0;
}

std::string current_folder() {
  std::error_code error;
  return std::filesystem::current_path(error).string();
}

}  // namespace

ModuleRun::ModuleRun(const config::Config& config, ModuleLayout layout, MemoryPlan plan)
    : config_(config),
      layout_(std::move(layout)),
      plan_(std::move(plan)),
      rules_(update_rules(config, plan_.state.settings)),
      units_(static_cast<std::size_t>(layout_.units())) {}

Result<std::unique_ptr<ModuleRun>> ModuleRun::create(const config::Config& config,
                                                     ModuleLayout layout) {
  SLUICE_RETURN_IF_ERROR(check_config(config));
  SLUICE_ASSIGN_OR_RETURN(MemoryPlan plan, plan_trained(config, layout));
  std::optional<MemoryPlan> frozen;
  if (layout.has_frozen()) {
    SLUICE_ASSIGN_OR_RETURN(frozen, plan_frozen(config, layout));
    add_frozen_lines(*frozen, plan);
  }
  SLUICE_RETURN_IF_ERROR(check_machine(config, plan));
  std::unique_ptr<ModuleRun> run(new ModuleRun(config, std::move(layout), std::move(plan)));
  run->frozen_plan_ = std::move(frozen);
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
}

Status ModuleRun::make_parts() {
  const int threads = compute_threads(config_);
  if (plan_.cuda && config_.budget.gpu_gib) {
    const auto cap = static_cast<std::uint64_t>(*config_.budget.gpu_gib * kGiB);
    SLUICE_RETURN_IF_ERROR(
        limit_cuda_memory(cap > kCudaContextBytes ? cap - kCudaContextBytes : 0));
  }
  SLUICE_ASSIGN_OR_RETURN(drives_, open_drives(config_, plan_));
  SLUICE_ASSIGN_OR_RETURN(update_executor_, aio::make_executor(threads));
  SLUICE_ASSIGN_OR_RETURN(gradient_executor_, aio::make_executor(threads));
  SLUICE_ASSIGN_OR_RETURN(parameters_,
                          ModelParameters::create(plan_, model(), {.drives = &drives_}));
  if (frozen_plan_) {
    SLUICE_ASSIGN_OR_RETURN(
        frozen_, ModelParameters::create(*frozen_plan_, layout_.frozen(), {.drives = &drives_}));
  }
  SLUICE_RETURN_IF_ERROR(make_optimizer());
  if (plan_.cuda) {
    SLUICE_ASSIGN_OR_RETURN(gradients_, make_cuda_gradient_sink(model(), sink_options(plan_),
                                                                /*link=*/nullptr,
                                                                /*trace=*/nullptr));
  } else {
    SLUICE_ASSIGN_OR_RETURN(gradients_, CpuGradientSink::create(model(), *gradient_executor_,
                                                                {.type = plan_.types.gradient,
                                                                 .isa = plan_.state.optimizer.isa,
                                                                 .order = plan_.sum_order,
                                                                 .sums = plan_.sums}));
  }
  update_units_ = std::make_unique<UnitBinding>(
      UnitBinding::Places{&parameters_->trained(), &parameters_->units(), gradients_.get()},
      UnitBinding::Access::kUpdate, model());
  // Beside the unit outside of all blocks, the thread that updates, and on the GPU the slots that
  // are copied into and were just used.
  constexpr int kOthers = 2;
  const bool on_nvme =
      plan_.params.uses_nvme() || (frozen_plan_ && frozen_plan_->params.uses_nvme());
  most_acquired_ = layout_.units();
  if (plan_.cuda) most_acquired_ = 1;
  if (on_nvme && !plan_.cuda)
    most_acquired_ = std::max(plan_.params.options.cache_buffers - kOthers, 1);
  return {};
}

Status ModuleRun::make_optimizer() {
  if (plan_.state.gpu_bytes > 0) {
    SLUICE_ASSIGN_OR_RETURN(gpu_tier_,
                            make_cuda_state_tier(plan_.state.gpu_bytes, stream_of(nullptr)));
  }
  SLUICE_ASSIGN_OR_RETURN(optimizer_,
                          offload::OptimizerOffloader::create(optimizer_options(plan_),
                                                              {.reads = drives_.reads.get(),
                                                               .writes = drives_.writes.get(),
                                                               .executor = update_executor_.get(),
                                                               .device = gpu_tier_.get()}));
  return {};
}

RunState ModuleRun::own_state() const {
  return {.optimizer = optimizer_.get(),
          .params = &parameters_->trained(),
          .units = &parameters_->units(),
          .model = &model()};
}

Status ModuleRun::initialise(const UnitValues& values) {
  DescribedValues trained(layout_, values);
  SLUICE_RETURN_IF_ERROR(own_state().set(
      [&](const RunState::Spans& to) -> Status {
        const at::NoGradGuard no_tape;
        return trained.read(unit_of(model(), to.parameter), to.parameter.name, to.first,
                            to.values.master);
      },
      offload::Calls::kInOrder, {}));
  SLUICE_RETURN_IF_ERROR(load_frozen(values));
  SLUICE_ASSIGN_OR_RETURN(state_, initial_state(rules_));
  return make_views();
}

Status ModuleRun::load_frozen(const UnitValues& values) {
  if (!frozen_) return {};
  const at::NoGradGuard no_tape;
  DescribedValues described(layout_, values);
  return load_parameters(
      {.model = &layout_.frozen(),
       .form = frozen_plan_->types.form,
       .params = &frozen_->trained(),
       .read =
           [&](const ParameterSpec& parameter, std::uint64_t first, std::span<float> to) {
             return described.read(unit_of(layout_.frozen(), parameter), parameter.name, first, to);
           },
       .progress = {}});
}

// They are the same from the first time on that their unit is acquired.
Status ModuleRun::make_views() {
  for (int unit = 0; unit < layout_.units(); ++unit) {
    if (!at(unit).views.empty()) continue;
    const UnitViews* trained = nullptr;
    const UnitViews* frozen = nullptr;
    if (has_trained(unit)) {
      SLUICE_RETURN_IF_ERROR(optimizer_->wait_ready(unit));
      SLUICE_ASSIGN_OR_RETURN(trained, parameters_->units().acquire(unit));
    }
    if (has_frozen(unit)) {
      SLUICE_ASSIGN_OR_RETURN(frozen, frozen_->units().acquire(unit));
    }
    const std::vector<ModuleParameter>& parameters = layout_.described(unit).parameters;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const ModuleLayout::Place& place = layout_.place(unit, static_cast<int>(i));
      const UnitViews& views = place.trained ? *trained : *frozen;
      at(unit).views.push_back(views[place.parameter].view(parameters[i].shape));
    }
    if (trained != nullptr) parameters_->units().release(unit);
    if (frozen != nullptr) frozen_->units().release(unit);
  }
  return {};
}

void ModuleRun::acquire(int unit) {
  if (at(unit).acquired) return;
  if (has_trained(unit)) {
    must(optimizer_->wait_ready(unit));
    must(parameters_->units().acquire(unit).status());
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
  if (has_trained(unit) && optimizer_->is_ready(unit)) must(parameters_->units().prefetch(unit));
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
  gradients_->open(unit);
  if (at(unit).begun) return gradients_->target_again(unit, micro_batch_);
  at(unit).begun = true;
  return gradients_->target(unit, micro_batch_).sums;
}

void ModuleRun::begin_backward() {
  if (in_last_micro_batch()) must(optimizer_->prefetch());
}

void ModuleRun::add(int unit, const std::vector<at::Tensor>& gradients, bool is_last) {
  const ModuleUnit& described = layout_.described(unit);
  const std::vector<ModuleParameter>& parameters = described.parameters;
  TORCH_CHECK_VALUE(gradients.size() == parameters.size(), "unit ", described.name, " has ",
                    parameters.size(), " parameters, and was given ", gradients.size(),
                    " gradients");
  TORCH_CHECK_VALUE(!is_complete(), "the step has all of its ", micro_batches(), " micro-batches");
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
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const at::Tensor& sum = sums[layout_.place(unit, static_cast<int>(i)).parameter];
    sum.add_(gradients[i].reshape(sum.sizes()));
  }
  if (!is_last) {
    must(gradients_->keep(unit));
    return;
  }
  at(unit).ended = true;
  gradients_->added(unit, micro_batch_);
  must(in_last_micro_batch() ? gradients_->finish(unit) : gradients_->keep(unit));
}

// All units are opened, and what none is described for as well: a step's gradients are complete
// when each of them is.
void ModuleRun::end(int unit) {
  const bool described = unit < layout_.units();
  if (described) {
    at(unit).begun = at(unit).begun && !at(unit).ended;
    if (std::exchange(at(unit).ended, false)) return;
    begin(unit);
    at(unit).begun = false;
  } else {
    gradients_->open(unit);
    gradients_->target(unit, micro_batch_);
  }
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
  const at::NoGradGuard no_tape;
  micro_batch_ = 0;
  // The last step's update may still need its gradients; where it has failed, so will all to come.
  if (!optimizer_->drain().ok()) return;
  // None of them counts as complete any more.
  for (int unit = model().units() - 1; unit >= 0; --unit) {
    gradients_->open(unit);
    gradients_->target(unit, 0);
    must(gradients_->keep(unit));
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
  const GradientTotals totals = must(gradients_->totals());
  outcome.grad_norm = std::sqrt(totals.square_sum) / outcome.loss_scale;
  for (const double loss : losses) outcome.loss += loss / static_cast<double>(losses.size());
  micro_batch_ = 0;
  is_touched_ = false;
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
  must(optimizer_->step({.groups = scalars_,
                         .source = update_units_.get(),
                         .background = config_.placement.overlap_update,
                         .number = state_.applied_step}));
  parameters_->units().changed();
  return outcome;
}

void ModuleRun::drain() {
  must(optimizer_->drain());
  must(parameters_->trained().drain());
}

Status ModuleRun::take_state(const TakeState& take, offload::Calls calls) {
  SLUICE_RETURN_IF_ERROR(optimizer_->drain());
  return own_state().take(take, calls);
}

CheckpointState ModuleRun::checkpoint_state() const {
  StoredRun run{.seed = static_cast<std::uint64_t>(config_.run.seed),
                .data_order = kUsersData,
                .precision = precision_name(config_.precision),
                .cpu_threads = compute_threads(config_),
                .family = kModuleFamily};
  run.sums.lanes = config_.run.lanes;
  run.sums.rounds = config_.run.rounds;
  std::int64_t parameters = 0;
  for (int unit = 0; unit < model().units(); ++unit)
    parameters += static_cast<std::int64_t>(model().layout(unit).parameters.size());
  run.model = {{"parameters", parameters},
               {"elements", static_cast<std::int64_t>(model().parameter_elements())}};
  auto configuration = config::stored_json(config_, current_folder());
  return {.position = stored_position(state_),
          .run = run,
          .configuration = configuration.ok() ? *configuration : std::string(),
          .client = client_,
          .program_version = SLUICE_VERSION};
}

Status ModuleRun::own_directory(const std::string& directory) {
  const std::string path = std::filesystem::absolute(directory).lexically_normal().string();
  if (checkpoints_ && directory_ == path) return {};
  aio::FileSystem& files = drives_.saves->backend().files();
  SLUICE_RETURN_IF_ERROR(files.make_directories(path));
  auto lock = files.lock(path + "/lock");
  if (!lock.ok() && lock.error().code() == ErrorCode::kBusy)
    return Error(ErrorCode::kBusy, "another run keeps its checkpoints in " + path +
                                       ": wait for it, end it, or choose another directory");
  if (!lock.ok()) return std::move(lock).error();
  CheckpointFolder folder(*drives_.saves, RunCheckpoints::folder_of(path));
  SLUICE_ASSIGN_OR_RETURN(const auto leftovers, folder.clean_leftovers());
  for (const std::string& name : leftovers)
    log::info("cleared up after a save that was interrupted: " + folder.path() + "/" + name);
  SLUICE_ASSIGN_OR_RETURN(
      checkpoints_,
      RunCheckpoints::create(
          *this, *drives_.saves,
          {.directory = path,
           .keep_last = static_cast<int>(config_.run.keep_last_checkpoints),
           .check_directory = [this]() -> Status {
             SLUICE_ASSIGN_OR_RETURN(const bool there, lock_->is_at(directory_ + "/lock"));
             if (there) return {};
             return Error(
                 ErrorCode::kNotFound,
                 directory_ + " is no longer there: was its drive unmounted, or was it moved?");
           }}));
  lock_ = *std::move(lock);
  directory_ = path;
  return {};
}

Result<std::string> ModuleRun::save(const std::string& directory, const std::string& client) {
  if (micro_batch_ > 0 || is_touched_)
    return Error(ErrorCode::kInvalidArgument, "a checkpoint is made between steps, and " +
                                                  std::to_string(micro_batch_) + " of the " +
                                                  std::to_string(micro_batches()) +
                                                  " micro-batches of one have ended");
  SLUICE_RETURN_IF_ERROR(own_directory(directory));
  client_ = client;
  const Status saving = checkpoints_->save({});
  client_.clear();
  SLUICE_RETURN_IF_ERROR(saving);
  const std::vector<SavedCheckpoint> saved = checkpoints_->finished();
  SLUICE_CHECK(saved.size() == 1, "a save in the foreground has ended");
  SLUICE_RETURN_IF_ERROR(saved.front().status);
  if (!saved.front().pruned.ok()) log::warning(saved.front().pruned.error().message());
  return saved.front().path;
}

Result<std::unique_ptr<CheckpointReader>> ModuleRun::open_checkpoint(const std::string& path,
                                                                     std::string& folder) {
  aio::FileSystem& files = drives_.saves->backend().files();
  SLUICE_ASSIGN_OR_RETURN(const bool is_one, files.exists(path + "/" + std::string(kManifestName)));
  folder = path;
  if (!is_one) {
    CheckpointFolder of_run(*drives_.saves, RunCheckpoints::folder_of(path));
    SLUICE_ASSIGN_OR_RETURN(const auto newest, of_run.newest());
    if (!newest)
      return Error(ErrorCode::kNotFound, "there is no checkpoint in " + path +
                                             ": neither it nor a folder in " + of_run.path() +
                                             " has a " + std::string(kManifestName));
    folder = newest->path;
  }
  return CheckpointReader::open(*drives_.saves, folder, {});
}

// All that the run has, and nothing else.
Status ModuleRun::check_parameters(CheckpointReader& checkpoint) const {
  const auto refused = [](const std::string& what) {
    return Error(ErrorCode::kInvalidArgument, "the checkpoint is of another module: " + what);
  };
  std::size_t parameters = 0;
  for (const TensorSpec& wanted : parameter_specs(model(), DType::kF32)) {
    const TensorInfo* const stored = checkpoint.find(wanted.name);
    if (stored == nullptr) return refused("it has no parameter " + wanted.name);
    if (stored->shape != wanted.shape)
      return refused(wanted.name + " is " + shape_text(stored->shape) + " there, and " +
                     shape_text(wanted.shape) + " in this one");
    ++parameters;
  }
  for (const TensorInfo& stored : checkpoint.parameters()) {
    if (checkpoint.parameters().size() == parameters) break;
    bool known = false;
    for (int unit = 0; unit < model().units() && !known; ++unit)
      for (const ParameterSpec& own : model().layout(unit).parameters)
        known |= own.name == stored.name;
    if (!known)
      return refused("it has a parameter " + stored.name + ", which this one does not train");
  }
  return {};
}

Result<std::string> ModuleRun::load(const std::string& path, const Accept& accept) {
  std::string folder;
  SLUICE_ASSIGN_OR_RETURN(const auto checkpoint, open_checkpoint(path, folder));
  const CheckpointState& stored = checkpoint->state();
  if (stored.run.family != kModuleFamily)
    return Error(ErrorCode::kInvalidArgument,
                 folder + " is of a run of the command line, with a model of the family " +
                     stored.run.family +
                     ": sluice export makes a folder of it that transformers reads");
  SLUICE_RETURN_IF_ERROR(check_parameters(*checkpoint));
  const CheckpointState now = checkpoint_state();
  SLUICE_RETURN_IF_ERROR(check_same_run(stored, now));
  warn_of_other_bits(stored, now);
  report_moments(checkpoint->manifest().moments, stored_moments(plan_.types));
  SLUICE_ASSIGN_OR_RETURN(const TrainState state,
                          continued_state(rules_, engine::train_state(stored.position)));
  SLUICE_RETURN_IF_ERROR(accept(stored.client));
  SLUICE_RETURN_IF_ERROR(checkpoint->check_headers());
  abandon_step();
  SLUICE_RETURN_IF_ERROR(own_state().set(
      [&](const RunState::Spans& to) {
        return checkpoint->read(to.parameter.name, to.first, to.values);
      },
      offload::Calls::kInOrder, {}, state.applied_step));
  parameters_->units().changed();
  state_ = state;
  SLUICE_RETURN_IF_ERROR(make_views());
  return folder;
}

Status ModuleRun::save_weights(const std::string& path, DType dtype) {
  SafetensorsWriter::Options options;
  options.path = path;
  SLUICE_ASSIGN_OR_RETURN(
      const auto writer,
      SafetensorsWriter::create(*drives_.writes, options, parameter_specs(model(), dtype)));
  SLUICE_RETURN_IF_ERROR(take_state([&](const ParameterState& state) {
    return writer->append(state.parameter->name, state.master);
  }));
  return writer->finish();
}

}  // namespace sluice::engine
