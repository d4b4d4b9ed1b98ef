#include <CLI/CLI.hpp>
#include <memory>
#include <utility>

#include "engine/generate/token_sampler.h"
#include "tools/cli/command.h"
#include "tools/cli/generation_model.h"
#include "tools/session/open_queue.h"
#include "tools/support/interrupt.h"

namespace sluice::tools {
namespace {

struct GenerateOptions {
  GenerationOptions model;
  std::string prompt;
  bool ignore_eos = false;
};

Status check_prompt(const GenerateOptions& options) {
  if (options.prompt.empty())
    return Error(ErrorCode::kInvalidArgument,
                 "--prompt is empty, but a model only continues text: give it a word or two");
  if (!options.model.chat && !(options.model.system.empty() && options.model.chat_template.empty()))
    return Error(ErrorCode::kInvalidArgument,
                 "--system and --chat-template are for conversations: add --chat");
  return {};
}

Result<std::vector<std::int64_t>> encode(TextTokens& tokens, const GenerateOptions& options) {
  if (!options.model.chat) return tokens.encode(options.prompt);
  ChatMessages messages;
  if (!options.model.system.empty()) messages.push_back({"system", options.model.system});
  messages.push_back({"user", options.prompt});
  auto encoded = tokens.encode_chat(messages);
  if (!encoded.ok()) return std::move(encoded).error().with_context("--chat");
  return encoded;
}

// Returns the exit code.
Result<int> continue_text(const GenerateOptions& options, engine::GenerationRun& run,
                          const GenerationModel& model, std::vector<std::int64_t> tokens) {
  const Interrupt interrupt;
  engine::TokenSampler sampler(options.model.sampling, options.model.seed);
  for (std::int64_t made = 0; made < options.model.tokens && !interrupt.requested(); ++made) {
    tokens = {sampler.next(run.feed(tokens))};
    if (!options.ignore_eos && model.special.ends_text(tokens.front())) break;
    SLUICE_ASSIGN_OR_RETURN(const std::string text, model.tokens->decode(tokens.front()));
    SLUICE_RETURN_IF_ERROR(write_text(text));
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string rest, model.tokens->finish());
  SLUICE_RETURN_IF_ERROR(write_text(rest + "\n"));
  return interrupt.requested() ? kInterruptedExitCode : 0;
}

Result<int> run(const GenerateOptions& options, aio::IoWatchdog& watchdog) {
  SLUICE_RETURN_IF_ERROR(check_prompt(options));
  SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog));
  SLUICE_ASSIGN_OR_RETURN(const GenerationModel model,
                          find_generation_model(*files.queue, options.model));
  watchdog.set_limit_s(model.config.run.io_watchdog_s);
  SLUICE_ASSIGN_OR_RETURN(const auto prompt, encode(*model.tokens, options));
  SLUICE_RETURN_IF_ERROR(check_vocabulary(prompt, model.config.model.vocab));
  SLUICE_ASSIGN_OR_RETURN(const auto loaded, load_generation_model(*files.queue, model));
  return at_work(continue_text(options, *loaded, model, prompt));
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
  add_model_argument(*command, options->model);
  command->add_option("--prompt", options->prompt, "The text to continue, or to answer")
      ->required();
  command->add_flag("--chat", options->model.chat,
                    "The prompt is a user's message, which the model answers");
  command->add_option("--system", options->model.system,
                      "With --chat: a system message before the prompt");
  command->add_option("--chat-template", options->model.chat_template,
                      "With --chat: a file with another template (Jinja)");
  command->add_flag("--ignore-eos", options->ignore_eos,
                    "Continues after the end of a text, up to --tokens");
  add_generation_options(*command, options->model);
  return [options](aio::IoWatchdog& watchdog) { return run(*options, watchdog); };
}

}  // namespace sluice::tools
