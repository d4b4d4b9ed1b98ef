#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <utility>

#include "engine/config/stored_config.h"
#include "engine/exchange/tokenizer_files.h"
#include "engine/generate/token_sampler.h"
#include "engine/run/stored_state.h"
#include "tools/cli/command.h"
#include "tools/cli/option_checks.h"
#include "tools/cli/text_tokens.h"
#include "tools/session/checkpoint_argument.h"
#include "tools/session/config_options.h"
#include "tools/session/open_queue.h"
#include "tools/session/run_setup.h"
#include "tools/session/run_tokenizer.h"
#include "tools/session/train_checks.h"
#include "tools/support/interrupt.h"

namespace sluice::tools {
namespace {

struct GenerateOptions {
  std::string from;
  std::string checkpoint;
  ConfigOptions config;  // the run's configuration, with overrides
  std::string prompt;
  bool chat = false;
  std::string system;
  std::string chat_template;
  std::int64_t tokens = 100;
  engine::SamplingOptions sampling;
  std::uint64_t seed = 0;
  std::string tokenizer;
  std::string tokens_tool;
  bool ignore_eos = false;
};

// The run's configuration file, or the one in the checkpoint if that was moved out of its run.
Result<config::Config> resolve_run(aio::IoQueue& queue, const GenerateOptions& options,
                                   const CheckpointArgument& from) {
  config::Sources sources;
  sources.overrides = overrides_of(options.config);
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

// Called before a plan is made: refuses adapters that belong to another base.
Status check_base(aio::IoQueue& queue, const CheckpointArgument& from,
                  const config::Config& config) {
  if (config.lora.rank == 0) return {};
  SLUICE_RETURN_IF_ERROR(check_init_from(config));
  SLUICE_ASSIGN_OR_RETURN(const auto manifest, engine::read_checkpoint_manifest(queue, from.path));
  return engine::check_base(queue, manifest.state.run, config.model.shape(),
                            config.model.init_from);
}

struct Language {
  std::unique_ptr<TextTokens> tokens;
  engine::SpecialTokens special;
};

Result<Language> open_language(aio::IoQueue& queue, const GenerateOptions& options,
                               const CheckpointArgument& from, const config::Config& config) {
  SLUICE_ASSIGN_OR_RETURN(const engine::TokenizerFiles tokenizer,
                          chosen_tokenizer(queue, {.name = options.tokenizer,
                                                   .run_directory = from.run_directory,
                                                   .token_files = config.data.train}));
  if (tokenizer.kind == engine::TokenizerFiles::Kind::kUnknown) {
    return Error(ErrorCode::kNotFound,
                 "the tokenizer of the model is not known (" + tokenizer.note +
                     "): name its file with --tokenizer FILE, or give --tokenizer bytes");
  }
  Language language{.special = tokenizer.special.within(config.model.vocab)};
  if (tokenizer.kind == engine::TokenizerFiles::Kind::kBytes) {
    language.tokens = byte_tokens();
    return language;
  }
  SLUICE_ASSIGN_OR_RETURN(std::string tool, find_tokens_tool(options.tokens_tool));
  SLUICE_ASSIGN_OR_RETURN(language.tokens, tool_tokens({.tool = std::move(tool),
                                                        .json = tokenizer.path,
                                                        .chat = options.chat,
                                                        .chat_template = options.chat_template}));
  return language;
}

Status check_prompt(const GenerateOptions& options) {
  if (options.prompt.empty())
    return Error(ErrorCode::kInvalidArgument,
                 "--prompt is empty, but a model only continues text: give it a word or two");
  if (!options.chat && !(options.system.empty() && options.chat_template.empty()))
    return Error(ErrorCode::kInvalidArgument,
                 "--system and --chat-template are for conversations: add --chat");
  return {};
}

Result<std::vector<std::int64_t>> encode(TextTokens& tokens, const GenerateOptions& options) {
  if (!options.chat) return tokens.encode(options.prompt);
  auto encoded = tokens.encode_chat(ChatPrompt{.system = options.system, .user = options.prompt});
  if (!encoded.ok()) return std::move(encoded).error().with_context("--chat");
  return encoded;
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

Status write(const std::string& text) {
  std::cout << text << std::flush;
  if (std::cout) return {};
  return Error(ErrorCode::kIo, "standard output cannot be written");
}

// Returns the exit code.
Result<int> continue_text(const GenerateOptions& options, engine::GenerationRun& model,
                          Language& language, std::vector<std::int64_t> tokens) {
  const Interrupt interrupt;
  engine::TokenSampler sampler(options.sampling, options.seed);
  for (std::int64_t made = 0; made < options.tokens && !interrupt.requested(); ++made) {
    tokens = {sampler.next(model.feed(tokens))};
    if (!options.ignore_eos && language.special.ends_text(tokens.front())) break;
    SLUICE_ASSIGN_OR_RETURN(const std::string text, language.tokens->decode(tokens.front()));
    SLUICE_RETURN_IF_ERROR(write(text));
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string rest, language.tokens->finish());
  SLUICE_RETURN_IF_ERROR(write(rest + "\n"));
  return interrupt.requested() ? kInterruptedExitCode : 0;
}

Result<int> run(const GenerateOptions& options, aio::IoWatchdog& watchdog) {
  SLUICE_RETURN_IF_ERROR(engine::validate(options.sampling));
  SLUICE_RETURN_IF_ERROR(check_prompt(options));
  SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog));
  SLUICE_ASSIGN_OR_RETURN(const CheckpointArgument from,
                          find_checkpoint(*files.queue, options.from, options.checkpoint));
  SLUICE_ASSIGN_OR_RETURN(const config::Config config, resolve_run(*files.queue, options, from));
  watchdog.set_limit_s(config.run.io_watchdog_s);
  SLUICE_ASSIGN_OR_RETURN(Language language, open_language(*files.queue, options, from, config));
  SLUICE_ASSIGN_OR_RETURN(const auto prompt, encode(*language.tokens, options));
  SLUICE_RETURN_IF_ERROR(check_vocabulary(prompt, config.model.vocab));
  SLUICE_RETURN_IF_ERROR(check_base(*files.queue, from, config));
  SLUICE_ASSIGN_OR_RETURN(const auto model, set_up_generation(config, from.path));
  return at_work(continue_text(options, *model, language, prompt));
}

}  // namespace

Command add_generate_command(CLI::App& sluice) {
  CLI::App* const command =
      sluice.add_subcommand("generate", "Generate text, also with models larger than memory");
  command->footer(
      "  sluice generate runs/demo --prompt 'def main' --tokens 200 --temperature 0.8\n  sluice "
      "generate runs/gpt2 --prompt 'The drive' --temperature 0 --set bf16.enabled=false\n  sluice "
      "generate runs/qwen --chat --prompt 'What is a sluice?'\nA prompt is text to continue. With "
      "--chat it is a user's message, formatted with the chat\ntemplate that is stored with the "
      "run's tokenizer, as in tools/prepare --chat.\nDIR/config.json sets the placement: "
      "parameters whose device is nvme are written to a store on\nthose paths and read from it "
      "unit by unit, once for each token. Keys and values are cached. When\nthe context "
      "(data.sequence_length) is full, its last half is fed again. Stops after --tokens,\nor where "
      "the model ends the text, with one of the tokens that\nDIR/tokenizer/generation_config.json "
      "names. The same seed, weights and precision give the same\ntext.");
  const auto options = std::make_shared<GenerateOptions>();
  command->add_option("DIR", options->from, "A run's directory, or the folder of one checkpoint")
      ->required();
  command->add_option("--prompt", options->prompt, "The text to continue, or to answer")
      ->required();
  command->add_flag("--chat", options->chat,
                    "The prompt is a user's message, which the model answers");
  command->add_option("--system", options->system,
                      "With --chat: a system message before the prompt");
  command->add_option("--chat-template", options->chat_template,
                      "With --chat: a file with another template (Jinja)");
  command->add_option("--tokens", options->tokens, "Largest number of new tokens (default 100)")
      ->check(at_least(1));
  command->add_option(
      "--temperature", options->sampling.temperature,
      "Below 1 favours probable tokens; 0 always chooses the most probable one (default 1)");
  command->add_option("--top-k", options->sampling.top_k,
                      "Samples from the K most probable tokens");
  command->add_option("--top-p", options->sampling.top_p,
                      "Samples from the most probable tokens whose probabilities add up to P");
  command->add_option("--seed", options->seed, "Sampling seed (default 0)");
  command->add_option(
      "--checkpoint", options->checkpoint,
      "Checkpoint of a run's directory: step-000000012, 12 or best; default: the newest");
  command->add_option("--tokenizer", options->tokenizer,
                      "A tokenizer.json, or bytes; default: the one the run was trained with");
  command->add_flag("--ignore-eos", options->ignore_eos,
                    "Continues after the end of a text, up to --tokens");
  command->add_option("--tokens-tool", options->tokens_tool,
                      "Path of tools/tokens, if it is not in the source tree of this program");
  add_override_options(*command, options->config);
  return [options](aio::IoWatchdog& watchdog) { return run(*options, watchdog); };
}

}  // namespace sluice::tools
