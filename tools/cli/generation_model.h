// The model of `generate` and `chat`: their common options, and what is found and checked before
// the weights are read.
//
// Errors: as sentences that say what is missing, or which option is wrong.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/config/config.h"
#include "engine/generate/token_sampler.h"
#include "engine/run/generation_run.h"
#include "engine/weights/special_tokens.h"
#include "tools/cli/text_tokens.h"
#include "tools/session/checkpoint_argument.h"
#include "tools/session/config_options.h"

namespace CLI {  // NOLINT(readability-identifier-naming): named by CLI11
class App;
}

namespace sluice::tools {

struct GenerationOptions {
  std::string from;
  std::string checkpoint;
  ConfigOptions config;  // the run's configuration, with overrides
  bool chat = false;     // needs the chat template
  std::string system;
  std::string chat_template;
  std::int64_t tokens = 100;
  engine::SamplingOptions sampling;
  std::uint64_t seed = 0;
  std::string tokenizer;
  std::string tokens_tool;
};

// `options` must outlive the parsing. Its number of tokens is the default.
void add_model_argument(CLI::App& command, GenerationOptions& options);
// All but DIR, --system and --chat-template.
void add_generation_options(CLI::App& command, GenerationOptions& options);

struct GenerationModel {
  CheckpointArgument from;
  config::Config config;
  std::unique_ptr<TextTokens> tokens;
  engine::SpecialTokens special;
};
// Finds the checkpoint, its configuration and its tokenizer, and validates the options.
Result<GenerationModel> find_generation_model(aio::IoQueue& queue,
                                              const GenerationOptions& options);
// Refuses adapters that belong to another base, then reads the weights.
Result<std::unique_ptr<engine::GenerationRun>> load_generation_model(aio::IoQueue& queue,
                                                                     const GenerationModel& model);

// Refuses tokens that the model does not have.
Status check_vocabulary(const std::vector<std::int64_t>& tokens, std::int64_t vocab);

// Writes to standard output at once.
Status write_text(const std::string& text);

}  // namespace sluice::tools
