#include "tools/session/export_checkpoint.h"

#include <utility>
#include <vector>

#include "aio/log.h"
#include "engine/config/stored_config.h"
#include "engine/exchange/base_model.h"
#include "tools/session/checkpoint_argument.h"
#include "tools/session/hub_model.h"
#include "tools/session/run_tokenizer.h"

namespace sluice::tools {
namespace {

// The base of adapters: the requested one, or the one that the run records.
Result<std::string> base_of(const ExportRequest& request, const engine::CheckpointState& state) {
  if (!state.run.adapters) {
    if (request.base.empty()) return std::string();
    return Error(ErrorCode::kInvalidArgument,
                 "--base: the checkpoint contains a whole model, not adapters");
  }
  if (!request.base.empty() && !request.merged)
    return Error(ErrorCode::kInvalidArgument,
                 "--base names the weights for --merged: give both, or leave it out");
  if (!request.base.empty()) return model_folder(request.base, HubFiles::kModel);
  const auto config = config::resolve_stored(state.configuration);
  const std::string found = config.ok() ? config->model.init_from : std::string();
  if (found.empty() && request.merged)
    return Error(
        ErrorCode::kInvalidArgument,
        "the location of the adapters' base weights is not known: name it with --base FOLDER");
  return found;
}

Status check_base_name(aio::IoQueue& queue, const ExportRequest& request,
                       const std::string& run_directory, const engine::CheckpointState& state) {
  if (request.base_name.empty() || state.run.adapters) return {};
  const auto config = config::resolve_stored(state.configuration);
  SLUICE_ASSIGN_OR_RETURN(
      const engine::BaseModel base,
      engine::base_model_of_run(queue, run_directory,
                                config.ok() ? config->model.init_from : std::string()));
  if (!base.name.empty()) return {};
  return Error(ErrorCode::kInvalidArgument,
               "--base-name " + request.base_name +
                   ": the run did not start from a model, or it is not known from which");
}

// The run's token files, from its checkpoint. If the configuration is of another version and cannot
// be read, the tokenizer is lost but not the weights.
std::vector<std::string> token_files(const engine::CheckpointState& state) {
  const auto config = config::resolve_stored(state.configuration);
  return config.ok() ? config->data.train : std::vector<std::string>();
}

Result<engine::DType> dtype_of(aio::IoQueue& queue, const engine::ExportOptions& wanted,
                               const engine::CheckpointState& state) {
  if (state.run.adapters && !wanted.merged) return engine::DType::kF32;
  const auto config = config::resolve_stored(state.configuration);
  SLUICE_ASSIGN_OR_RETURN(
      const engine::BaseModel base,
      engine::base_model_of_run(queue, wanted.run_directory,
                                config.ok() ? config->model.init_from : wanted.base));
  return base.dtype.value_or(engine::DType::kF32);
}

}  // namespace

Result<ExportedCheckpoint> export_checkpoint(aio::IoQueue& queue, const ExportRequest& request) {
  engine::ExportOptions wanted{.folder = request.to,
                               .max_shard_bytes = request.max_shard_bytes,
                               .base_name = request.base_name};
  SLUICE_RETURN_IF_ERROR(engine::check_empty(queue.backend().files(), request.to));
  SLUICE_ASSIGN_OR_RETURN(const CheckpointArgument from,
                          find_checkpoint(queue, request.from, request.checkpoint));
  SLUICE_ASSIGN_OR_RETURN(const auto checkpoint,
                          engine::CheckpointReader::open(queue, from.path, {.moments = false}));
  SLUICE_ASSIGN_OR_RETURN(
      wanted.tokenizer, chosen_tokenizer(queue, {.name = request.tokenizer,
                                                 .run_directory = from.run_directory,
                                                 .token_files = token_files(checkpoint->state())}));
  wanted.merged = request.merged;
  SLUICE_ASSIGN_OR_RETURN(wanted.base, base_of(request, checkpoint->state()));
  wanted.run_directory = from.run_directory;
  SLUICE_RETURN_IF_ERROR(check_base_name(queue, request, from.run_directory, checkpoint->state()));
  if (request.dtype) {
    wanted.dtype = *request.dtype;
  } else {
    SLUICE_ASSIGN_OR_RETURN(wanted.dtype, dtype_of(queue, wanted, checkpoint->state()));
  }
  const auto& adapters = checkpoint->state().run.adapters;
  if (request.merged && adapters && adapters->base_bits < engine::StoredAdapters{}.base_bits)
    log::info("the adapters were trained on this model in " + std::to_string(adapters->base_bits) +
              " bits, but are merged into its original weights: the merged model differs from the "
              "trained one by the rounding error");
  wanted.progress = request.progress;
  SLUICE_ASSIGN_OR_RETURN(const engine::Exported files,
                          engine::export_model(queue, *checkpoint, wanted));
  return ExportedCheckpoint{.files = files,
                            .path = from.path,
                            .base = wanted.base,
                            .is_adapter = adapters && !request.merged,
                            .dtype = wanted.dtype,
                            .tokenizer = wanted.tokenizer};
}

void warn_of_exported(const engine::TokenizerFiles& tokenizer) {
  if (tokenizer.kind == engine::TokenizerFiles::Kind::kUnknown)
    log::warning("the folder has no tokenizer, because the tokenizer is not known: " +
                 tokenizer.note + ". To include it, use --tokenizer FILE (or bytes)");
  if (tokenizer.special.ends.empty())
    log::warning("the token that ends a text is not known: generation continues to its limit");
}

}  // namespace sluice::tools
