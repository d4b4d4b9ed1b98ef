// ModuleRun: loading a checkpoint, or those of a pipeline's stages.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aio/check.h"
#include "engine/checkpoint/checkpoint_names.h"
#include "engine/checkpoint/checkpoint_reader.h"
#include "engine/checkpoint/run_directory.h"
#include "engine/exchange/stored_shape.h"
#include "engine/module/module_run.h"
#include "engine/run/stored_state.h"

namespace sluice::engine {
namespace {

// The part that has the parameter; the first one if none has it.
CheckpointReader& reader_of(const std::vector<std::unique_ptr<CheckpointReader>>& parts,
                            const std::string& parameter) {
  const auto found = std::find_if(parts.begin(), parts.end(), [&](const auto& part) {
    return part->find(parameter) != nullptr;
  });
  return found == parts.end() ? *parts.front() : **found;
}

}  // namespace

Result<std::unique_ptr<CheckpointReader>> ModuleRun::open_checkpoint(const std::string& path,
                                                                     std::string& folder) {
  aio::FileSystem& files = parts_->drives().saves->backend().files();
  SLUICE_ASSIGN_OR_RETURN(const bool is_one, files.exists(path + "/" + std::string(kManifestName)));
  folder = path;
  if (!is_one) {
    CheckpointFolder of_run(*parts_->drives().saves, RunCheckpoints::folder_of(path));
    SLUICE_ASSIGN_OR_RETURN(const auto newest, of_run.newest());
    if (!newest)
      return Error(ErrorCode::kNotFound, "there is no checkpoint in " + path +
                                             ": neither it nor a folder in " + of_run.path() +
                                             " has a " + std::string(kManifestName));
    folder = newest->path;
  }
  return CheckpointReader::open(*parts_->drives().saves, folder, {});
}

// Checks that a checkpoint is of a module, and of the step of the other parts.
Status ModuleRun::check_part(const CheckpointReader& part, const CheckpointReader& first,
                             const std::string& folder) const {
  const CheckpointState& stored = part.state();
  if (stored.run.family != kModuleFamily)
    return Error(ErrorCode::kInvalidArgument,
                 folder + " is from a run of sluice train, with a model of the family " +
                     stored.run.family +
                     ": sluice export converts it to a folder that transformers can load");
  if (stored.position.global_step != first.state().position.global_step)
    return Error(ErrorCode::kInvalidArgument,
                 folder + " is of step " + std::to_string(stored.position.global_step) +
                     ", and another part of the checkpoint is of step " +
                     std::to_string(first.state().position.global_step));
  return {};
}

// Checks that the checkpoint has exactly this run's parameters. Several are those of a pipeline's
// stages, which together may have more.
Status ModuleRun::check_parameters(const Readers& checkpoints) const {
  const auto refused = [](const std::string& what) {
    return Error(ErrorCode::kInvalidArgument, "the checkpoint belongs to another module: " + what);
  };
  std::size_t parameters = 0;
  for (const TensorSpec& wanted : parameter_specs(model(), DType::kF32)) {
    const TensorInfo* const stored = reader_of(checkpoints, wanted.name).find(wanted.name);
    if (stored == nullptr) return refused("it has no parameter " + wanted.name);
    if (stored->shape != wanted.shape)
      return refused(wanted.name + " is " + shape_text(stored->shape) + " there, and " +
                     shape_text(wanted.shape) + " in this one");
    ++parameters;
  }
  if (checkpoints.size() > 1) return {};
  for (const TensorInfo& stored : checkpoints.front()->parameters()) {
    if (checkpoints.front()->parameters().size() == parameters) break;
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
  return load_parts(
      {path}, [&](const std::vector<std::string>& clients) { return accept(clients.front()); });
}

Result<std::string> ModuleRun::load_parts(const std::vector<std::string>& paths,
                                          const AcceptParts& accept) {
  SLUICE_ASSIGN_OR_RETURN(std::string folder, agree(load_own(paths, accept)));
  SLUICE_RETURN_IF_ERROR(make_views());
  return folder;
}

Result<std::string> ModuleRun::load_own(const std::vector<std::string>& paths,
                                        const AcceptParts& accept) {
  SLUICE_CHECK(!paths.empty(), "a checkpoint has at least one part");
  Readers checkpoints;
  std::vector<std::string> folders(paths.size());
  std::vector<std::string> clients;
  for (std::size_t part = 0; part < paths.size(); ++part) {
    SLUICE_ASSIGN_OR_RETURN(auto opened, open_checkpoint(paths[part], folders[part]));
    clients.push_back(opened->state().client);
    checkpoints.push_back(std::move(opened));
    SLUICE_RETURN_IF_ERROR(check_part(*checkpoints.back(), *checkpoints.front(), folders[part]));
  }
  const std::string& folder = folders.front();
  const CheckpointState& stored = checkpoints.front()->state();
  SLUICE_RETURN_IF_ERROR(check_parameters(checkpoints));
  for (const auto& part : checkpoints) {
    CheckpointState now = checkpoint_state();
    // A stage has other numbers of parameters and elements, each of which was compared.
    if (checkpoints.size() > 1) now.run.model = part->state().run.model;
    SLUICE_RETURN_IF_ERROR(check_same_run(part->state(), now));
  }
  if (is_first()) warn_of_other_bits(stored, checkpoint_state());
  report_moments(checkpoints.front()->manifest().moments, stored_moments(plan_.types));
  SLUICE_ASSIGN_OR_RETURN(const TrainState state,
                          continued_state(rules_, engine::train_state(stored.position)));
  SLUICE_RETURN_IF_ERROR(accept(clients));
  for (const auto& checkpoint : checkpoints) SLUICE_RETURN_IF_ERROR(checkpoint->check_headers());
  abandon_step();
  SLUICE_RETURN_IF_ERROR(parts_->state().set(
      [&](const ParameterSpec& parameter, const offload::StateSlice& to) {
        return reader_of(checkpoints, parameter.name).read(parameter.name, to);
      },
      offload::Calls::kInOrder, {}, state.applied_step));
  parts_->parameters().units().invalidate();
  update_->set_state(state);
  return folder;
}

}  // namespace sluice::engine
