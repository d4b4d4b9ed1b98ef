// ModuleRun: setting and saving its state.
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <span>
#include <utility>

#include "aio/check.h"
#include "aio/log.h"
#include "engine/checkpoint/checkpoint_names.h"
#include "engine/checkpoint/run_directory.h"
#include "engine/config/stored_config.h"
#include "engine/device/host.h"
#include "engine/exchange/stored_shape.h"
#include "engine/module/module_run.h"
#include "engine/module/parameter_spill.h"
#include "engine/run/gathered_state.h"
#include "engine/run/stored_state.h"
#include "engine/runtime/load_parameters.h"
#include "engine/weights/safetensors_writer.h"

namespace sluice::engine {
namespace {

constexpr const char* kUsersData = "python";  // instead of a data order, which is the user's

// Elements [first, first + to.size()) of a tensor, as fp32.
Status copy_values(const at::Tensor& tensor, const std::string& name, std::uint64_t first,
                   std::span<float> to) {
  if (!tensor.is_contiguous())
    SLUICE_RETURN_IF_ERROR(ParameterSpill::touch({tensor}, ParameterSpill::Use::kRead).status());
  SLUICE_ASSIGN_OR_RETURN(
      const at::Tensor part,
      ParameterSpill::values_of(tensor.reshape(-1).slice(
          0, static_cast<std::int64_t>(first), static_cast<std::int64_t>(first + to.size()))));
  const at::Tensor values = part.to(at::kCPU, at::kFloat).contiguous();
  std::memcpy(to.data(), values.const_data_ptr<float>(), to.size_bytes());
  if (std::all_of(to.begin(), to.end(), [](float value) { return std::isfinite(value); }))
    return {};
  return Error(ErrorCode::kInvalidArgument,
               "parameter " + name + " has a value that is not finite: training cannot start");
}

std::uint64_t elements_of(const ModuleParameter& parameter) {
  std::uint64_t elements = 1;
  for (const std::int64_t size : parameter.shape) elements *= static_cast<std::uint64_t>(size);
  return elements;
}

// Values of described parameters under a layout's names, cached for one unit at a time.
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
                                                      " values, but has another shape");
      try {
        return copy_values(tensors_[i], name, first, to);
      } catch (const std::exception& error) {  // on an executor's thread
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

// Without the padding rows of a GPU slot.
at::Tensor as_described(const at::Tensor& view, const std::vector<std::int64_t>& shape) {
  std::int64_t numbers = 1;
  for (const std::int64_t size : shape) numbers *= size;
  const bool is_padded = view.numel() > numbers;
  return (is_padded ? view.narrow(0, 0, shape.front()) : view).view(shape);
}

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

std::string absolute_path(const std::string& directory) {
  return std::filesystem::absolute(directory).lexically_normal().string();
}

std::string current_folder() {
  std::error_code error;
  return std::filesystem::current_path(error).string();
}

}  // namespace

Status ModuleRun::initialise(const UnitValues& values) {
  const Status own = initialise_own(values);
  SLUICE_RETURN_IF_ERROR(
      agree(own.ok() ? Result<std::string>(std::string()) : Result<std::string>(own.error()))
          .status());
  return make_views();
}

Status ModuleRun::initialise_own(const UnitValues& values) {
  DescribedValues trained(layout_, values);
  SLUICE_RETURN_IF_ERROR(parts_->state().set(
      [&](const ParameterSpec& parameter, const offload::StateSlice& to) -> Status {
        const at::NoGradGuard no_tape;
        return trained.read(unit_of(model(), parameter), parameter.name, to.first_element,
                            to.master());
      },
      offload::Calls::kInOrder, {}));
  SLUICE_RETURN_IF_ERROR(load_frozen(values));
  // Units in GPU slots have the old values.
  parts_->parameters().units().invalidate();
  if (parts_->frozen() != nullptr) parts_->frozen()->units().invalidate();
  SLUICE_ASSIGN_OR_RETURN(const TrainState state, initial_state(rules_));
  update_->set_state(state);
  return {};
}

Status ModuleRun::load_frozen(const UnitValues& values) {
  if (parts_->frozen() == nullptr) return {};
  const at::NoGradGuard no_tape;
  DescribedValues described(layout_, values);
  return load_parameters(
      {.model = &layout_.frozen(),
       .form = frozen_plan_->types.form,
       .params = &parts_->frozen()->trained(),
       .read =
           [&](const ParameterSpec& parameter, std::uint64_t first, std::span<float> to) {
             return described.read(unit_of(layout_.frozen(), parameter), parameter.name, first, to);
           },
       .progress = {}});
}

// The tensors stay the same after the first acquire of their unit.
Status ModuleRun::make_views() {
  for (int unit = 0; unit < layout_.units(); ++unit) {
    if (!at(unit).views.empty()) continue;
    const UnitViews* trained = nullptr;
    const UnitViews* frozen = nullptr;
    if (has_trained(unit)) {
      SLUICE_ASSIGN_OR_RETURN(trained, engine_->acquire(unit));
    }
    if (has_frozen(unit)) {
      SLUICE_ASSIGN_OR_RETURN(frozen, parts_->frozen()->units().acquire(unit));
    }
    const std::vector<ModuleParameter>& parameters = layout_.described(unit).parameters;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const ModuleLayout::ParameterIndex& index =
          layout_.parameter_index(unit, static_cast<int>(i));
      const UnitViews* const views = index.trained ? trained : frozen;
      SLUICE_CHECK(views != nullptr, "a unit has the parameters that are described");
      at(unit).views.push_back(as_described((*views)[index.parameter], parameters[i].shape));
    }
    if (trained != nullptr) engine_->release(unit);
    if (frozen != nullptr) parts_->frozen()->units().release(unit);
  }
  return {};
}

Status ModuleRun::take_state(const TakeState& take, offload::Calls calls) {
  SLUICE_RETURN_IF_ERROR(parts_->optimizer().drain());
  return take_gathered_state(parts_->state(), ranks(), take, calls);
}

RunState ModuleRun::settled_state() { return parts_->state(); }

CheckpointState ModuleRun::checkpoint_state() const {
  StoredRun run{.seed = static_cast<std::uint64_t>(config_.run.seed),
                .data_order = kUsersData,
                .precision = precision_name(config_.precision),
                .cpu_threads = compute_threads(config_),
                .family = std::string(kModuleFamily)};
  run.sums.lanes = config_.run.lanes;
  run.sums.rounds = config_.run.rounds;
  std::int64_t parameters = 0;
  for (int unit = 0; unit < model().units(); ++unit)
    parameters += static_cast<std::int64_t>(model().layout(unit).parameters.size());
  run.model = {{"parameters", parameters},
               {"elements", static_cast<std::int64_t>(model().parameter_elements())}};
  auto configuration = config::stored_json(config_, current_folder());
  return {.position = stored_position(train_state()),
          .run = run,
          .configuration = configuration.ok() ? *configuration : std::string(),
          .client = client_,
          .program_version = SLUICE_VERSION};
}

Status ModuleRun::lock_directory(const std::string& path) {
  if (locks_.contains(path)) return {};
  aio::FileSystem& files = parts_->drives().saves->backend().files();
  SLUICE_RETURN_IF_ERROR(check_checkpoints_are_no_link(files, path));
  SLUICE_RETURN_IF_ERROR(files.make_directories(path));
  auto lock = files.lock(path + "/lock");
  if (!lock.ok() && lock.error().code() == ErrorCode::kBusy)
    return Error(ErrorCode::kBusy, "another run saves its checkpoints in " + path +
                                       ": wait for it, stop it, or choose another folder");
  if (!lock.ok()) return std::move(lock).error();
  CheckpointFolder folder(*parts_->drives().saves, RunCheckpoints::folder_of(path));
  SLUICE_ASSIGN_OR_RETURN(const auto leftovers, folder.clean_leftovers());
  for (const std::string& name : leftovers)
    log::info("removed the files of an interrupted save: " + folder.path() + "/" + name);
  locks_[path] = *std::move(lock);
  return {};
}

Status ModuleRun::own_directory(const std::string& directory) {
  const std::string path = absolute_path(directory);
  SLUICE_RETURN_IF_ERROR(check_run_directory(*parts_->drives().saves, path));
  SLUICE_RETURN_IF_ERROR(lock_directory(path));
  home_ = path;
  return {};
}

// Later checkpoints go to this directory.
Status ModuleRun::save_into(const std::string& directory, bool background) {
  const std::string path = absolute_path(directory);
  if (checkpoints_ && directory_ == path && saves_in_background_ == background) return {};
  SLUICE_RETURN_IF_ERROR(lock_directory(path));
  end_saves();
  checkpoints_.reset();
  if (directory_ != path && directory_ != home_) locks_.erase(directory_);
  directory_ = path;
  SLUICE_ASSIGN_OR_RETURN(
      checkpoints_,
      RunCheckpoints::create(
          *this, *parts_->drives().saves,
          {.directory = path,
           .keep_last = static_cast<int>(config_.run.keep_last_checkpoints),
           .background = background,
           .check_directory = [path, &lock = *locks_.at(path)]() -> Status {
             SLUICE_ASSIGN_OR_RETURN(const bool there, lock.is_at(path + "/lock"));
             if (there) return {};
             return Error(ErrorCode::kNotFound,
                          path + " no longer exists: was its drive unmounted, or was it moved?");
           }}));
  saves_in_background_ = background;
  return {};
}

Result<std::string> ModuleRun::save(const SaveOptions& options) {
  const bool is_between = options.within_step && !awaits_update_ && engine_->open_unit() < 0;
  if ((micro_batch_ > 0 || is_touched_) && !is_between)
    return Error(ErrorCode::kInvalidArgument, "a checkpoint can only be saved between steps, but " +
                                                  std::to_string(micro_batch_) + " of the " +
                                                  std::to_string(micro_batches()) +
                                                  " micro-batches of a step are done");
  return agree(is_first() ? save_as_first(options) : follow_save());
}

Result<std::string> ModuleRun::save_as_first(const SaveOptions& options) {
  const bool in_background = options.background;
  client_ = options.client;
  Status saving = check_manifest_room(checkpoint_state(), parameter_specs(model(), DType::kF32));
  if (saving.ok()) saving = save_into(options.directory, in_background);
  if (saving.ok()) saving = checkpoints_->save({.loss = options.loss});
  client_.clear();
  if (!in_background) end_saves();
  SLUICE_RETURN_IF_ERROR(lead(SaveOrder::kDone));
  SLUICE_RETURN_IF_ERROR(saving);
  if (in_background)
    return RunCheckpoints::folder_of(directory_) + "/" + checkpoint_name(train_state().global_step);
  const SavedCheckpoint& saved = ended_saves_.back();
  SLUICE_RETURN_IF_ERROR(saved.status);
  return saved.path;
}

void ModuleRun::wait_for_saves() {
  wait_for_saves_together();
  end_saves();
}

void ModuleRun::end_saves() {
  if (!checkpoints_) return;
  checkpoints_->wait();
  for (SavedCheckpoint& saved : checkpoints_->finished()) ended_saves_.push_back(std::move(saved));
}

std::vector<SavedCheckpoint> ModuleRun::finished_saves() {
  if (checkpoints_)
    for (SavedCheckpoint& saved : checkpoints_->finished())
      ended_saves_.push_back(std::move(saved));
  return std::exchange(ended_saves_, {});
}

Status ModuleRun::save_weights(const std::string& path, DType dtype) {
  std::unique_ptr<SafetensorsWriter> writer;
  const auto begin = [&]() -> Result<std::string> {
    if (!is_first()) return std::string();
    SafetensorsWriter::Options options;
    options.path = path;
    SLUICE_ASSIGN_OR_RETURN(writer, SafetensorsWriter::create(*parts_->drives().writes, options,
                                                              parameter_specs(model(), dtype)));
    return path;
  };
  SLUICE_RETURN_IF_ERROR(agree(begin()).status());
  Status done =
      take_state([&](const ParameterSpec& parameter, const offload::ConstStateSlice& state) {
        return writer->append(parameter.name, state.master());
      });
  if (done.ok() && writer) done = writer->finish();
  return agree(done.ok() ? Result<std::string>(path) : Result<std::string>(done.error())).status();
}

}  // namespace sluice::engine
