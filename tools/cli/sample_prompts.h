// SamplePrompts: the prompts of samples.prompts, which a run continues while it trains.
//
// Threads: one.
// Errors:  open(): the user's mistakes in the file, or a tokenizer that is missing. generate(): the
//          tokenizer's process failed. Errors of the model's passes are thrown, as a step's are.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/config/config.h"
#include "engine/exchange/tokenizer_files.h"
#include "tools/cli/text_tokens.h"
#include "tools/session/sample_text.h"

namespace sluice::tools {

class SamplePrompts {
 public:
  static constexpr std::size_t kMostPrompts = 64;
  static constexpr std::size_t kMostBytes = std::size_t{1} << 20;  // of the file

  // Reads the file, and encodes the prompts with the tokenizer of the run's data.
  static Result<std::unique_ptr<SamplePrompts>> open(aio::IoQueue& queue,
                                                     const config::Config& config,
                                                     const engine::TokenizerFiles& tokenizer);

  Result<std::vector<SampleText>> generate(engine::TrainingRun& run,
                                           const std::function<bool()>& stop);

 private:
  SamplePrompts() = default;
  Result<SampleText> continue_text(const std::string& prompt, std::uint64_t seed,
                                   engine::TrainingRun& run, const std::function<bool()>& stop);

  std::vector<std::string> prompts_;
  std::unique_ptr<TextTokens> tokens_;
  engine::SpecialTokens special_;
};

// The prompts of a file: its lines, or with the ending .jsonl objects with "prompt". Empty lines
// are left out.
Result<std::vector<std::string>> parse_prompts(const std::string& path, const std::string& text);

}  // namespace sluice::tools
