#include "tools/cli/generation_model.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <utility>

#include "aio/text.h"
#include "engine/config/stored_config.h"
#include "engine/exchange/tokenizer_files.h"
#include "engine/run/stored_state.h"
#include "tools/cli/marked_text.h"
#include "tools/cli/option_checks.h"
#include "tools/session/run_setup.h"
#include "tools/session/run_tokenizer.h"
#include "tools/session/train_checks.h"

namespace sluice::tools {
namespace {

// The run's configuration file, or the one in the checkpoint if that was moved out of its run.
Result<config::Config> resolve_run(aio::IoQueue& queue, const GenerationOptions& options,
                                   const CheckpointArgument& from) {
  config::Sources sources;
  sources.overrides = overrides_of(options.config);
  // Generation computes no product in fp8, so it takes other precisions than bf16.
  sources.overrides.emplace_back("fp8.enabled=false");
  const std::string file = from.run_directory + "/config.json";
  SLUICE_ASSIGN_OR_RETURN(const bool there, queue.backend().files().exists(file));
  if (!from.run_directory.empty() && there) {
    SLUICE_ASSIGN_OR_RETURN(config::Source kept, config::read_source(file));
    sources.run_file = config::in_run_folder(std::move(kept), from.run_directory);
  } else {
    SLUICE_ASSIGN_OR_RETURN(const auto manifest,
                            engine::read_checkpoint_manifest(queue, from.path));
    sources.run_file = config::Source{.name = from.path, .text = manifest.state.configuration};
  }
  if (!options.config.deepspeed.empty()) {
    SLUICE_ASSIGN_OR_RETURN(sources.deepspeed, config::read_source(options.config.deepspeed));
  }
  SLUICE_RETURN_IF_ERROR(look_up_facts(LookAtData::kNo, sources));
  SLUICE_ASSIGN_OR_RETURN(config::Resolved resolved, config::resolve(sources));
  // The store on NVMe is named after run.dir.
  resolved.config.run.dir = from.run_directory.empty() ? from.path : from.run_directory;
  return std::move(resolved.config);
}

Status open_tokenizer(aio::IoQueue& queue, const GenerationOptions& options,
                      GenerationModel& model) {
  SLUICE_ASSIGN_OR_RETURN(const engine::TokenizerFiles tokenizer,
                          chosen_tokenizer(queue, {.name = options.tokenizer,
                                                   .run_directory = model.from.run_directory,
                                                   .token_files = model.config.data.train}));
  if (tokenizer.kind == engine::TokenizerFiles::Kind::kUnknown) {
    return Error(ErrorCode::kNotFound,
                 "the tokenizer of the model is not known (" + tokenizer.note +
                     "): name its file with --tokenizer FILE, or give --tokenizer bytes");
  }
  model.special = tokenizer.special.within(model.config.model.vocab);
  if (tokenizer.kind == engine::TokenizerFiles::Kind::kBytes) {
    model.tokens = byte_tokens();
    return {};
  }
  SLUICE_ASSIGN_OR_RETURN(std::string tool, find_tokens_tool(options.tokens_tool));
  SLUICE_ASSIGN_OR_RETURN(model.tokens, tool_tokens({.tool = std::move(tool),
                                                     .json = tokenizer.path,
                                                     .chat = options.chat,
                                                     .chat_template = options.chat_template}));
  return {};
}

// Called before a plan is made.
Status check_base(aio::IoQueue& queue, const GenerationModel& model) {
  if (model.config.lora.rank == 0) return {};
  SLUICE_RETURN_IF_ERROR(check_init_from(model.config));
  SLUICE_ASSIGN_OR_RETURN(const auto manifest,
                          engine::read_checkpoint_manifest(queue, model.from.path));
  return engine::check_base(queue, manifest.state.run, model.config.model.shape(),
                            model.config.model.init_from);
}

}  // namespace

void add_model_argument(CLI::App& command, GenerationOptions& options) {
  command.add_option("DIR", options.from, "A run's folder, or the folder of one checkpoint")
      ->required();
}

void add_generation_options(CLI::App& command, GenerationOptions& options) {
  command
      .add_option("--tokens", options.tokens,
                  "Largest number of new tokens (default " + std::to_string(options.tokens) + ")")
      ->check(at_least(1));
  command.add_option(
      "--temperature", options.sampling.temperature,
      "Below 1 favours probable tokens; 0 always chooses the most probable one (default 1)");
  command.add_option("--top-k", options.sampling.top_k, "Samples from the K most probable tokens");
  command.add_option("--top-p", options.sampling.top_p,
                     "Samples from the most probable tokens whose probabilities add up to P");
  command.add_option("--seed", options.seed, "Sampling seed (default 0)");
  command.add_option(
      "--checkpoint", options.checkpoint,
      "Checkpoint in a run's folder: step-000000012, 12 or best; default: the newest");
  command.add_option("--tokenizer", options.tokenizer,
                     "A tokenizer.json, or bytes; default: the one the run was trained with");
  command.add_option("--tokens-tool", options.tokens_tool,
                     "Path of tools/tokens, if it is not in the source tree of this program");
  add_override_options(command, options.config);
}

Result<GenerationModel> find_generation_model(aio::IoQueue& queue,
                                              const GenerationOptions& options) {
  SLUICE_RETURN_IF_ERROR(engine::validate(options.sampling));
  GenerationModel model;
  SLUICE_ASSIGN_OR_RETURN(model.from, find_checkpoint(queue, options.from, options.checkpoint));
  SLUICE_ASSIGN_OR_RETURN(model.config, resolve_run(queue, options, model.from));
  SLUICE_RETURN_IF_ERROR(open_tokenizer(queue, options, model));
  return model;
}

Result<std::unique_ptr<engine::GenerationRun>> load_generation_model(aio::IoQueue& queue,
                                                                     const GenerationModel& model) {
  SLUICE_RETURN_IF_ERROR(check_base(queue, model));
  return set_up_generation(model.config, model.from.path);
}

Status check_vocabulary(const std::vector<std::int64_t>& tokens, std::int64_t vocab) {
  for (const std::int64_t token : tokens) {
    if (token >= 0 && token < vocab) continue;
    return Error(ErrorCode::kInvalidArgument, "the prompt has token " + std::to_string(token) +
                                                  ", but the model's vocabulary is " +
                                                  std::to_string(vocab) +
                                                  ": the tokenizer belongs to another model");
  }
  return {};
}

Status write_text(const std::string& text) {
  static const bool is_terminal = isatty(STDOUT_FILENO) == 1;
  std::cout << (is_terminal ? printable(text) : text) << std::flush;
  if (std::cout) return {};
  return Error(ErrorCode::kIo, "standard output cannot be written");
}

}  // namespace sluice::tools
