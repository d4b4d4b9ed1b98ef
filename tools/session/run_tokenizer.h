// Compares the tokenizers of a command's data and model before anything is computed, and stores the
// tokenizer with the run.
//
// Errors: kInvalidArgument if they differ, naming the flag that continues anyway.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aio/io_queue.h"
#include "aio/io_watchdog.h"
#include "aio/result.h"
#include "engine/config/config.h"
#include "engine/exchange/tokenizer_files.h"

namespace CLI {  // NOLINT(readability-identifier-naming): named by CLI11
class App;
}

namespace sluice::tools {

inline constexpr const char* kAnyTokenizer = "--any-tokenizer";
void add_any_tokenizer(CLI::App& command, bool& any);

// Compares the tokenizers of data.train and data.validation. Also calls check_first_data(), unless
// run.resume is set, since the run may then not begin at step 0. Returns the tokenizer to keep.
// Reports on standard error what the user should know about it.
Result<engine::TokenizerFiles> check_training_data(aio::IoQueue& queue,
                                                   const config::Config& config, bool any);
// For a run that begins at step 0: compares weights (model.init_from) and adapters
// (recipe.lora.adapter) with the model, and the weights' tokenizer with the data's. Returns the one
// to keep.
Result<engine::TokenizerFiles> check_first_data(aio::IoQueue& queue, const config::Config& config,
                                                const engine::TokenizerFiles& data, bool any);
// The same for data that weights (model.init_from) are evaluated on.
Status check_evaluation_data(aio::IoQueue& queue, const config::Config& config, bool any);
// Warns where check_training_data() would refuse, for commands that need no data.
void warn_of_tokenizers(const config::Config& config, aio::IoWatchdog& watchdog);

struct ResumedTokenizer {
  std::string checkpoint;          // the folder of the checkpoint to continue from
  engine::TokenizerFiles of_data;  // the result of check_training_data()
  bool any = false;
};
// Compares the data's tokenizer with that of the run that wrote the checkpoint. Returns the one to
// keep.
Result<engine::TokenizerFiles> check_resumed_data(aio::IoQueue& queue,
                                                  const ResumedTokenizer& resumed);

// Stores the tokenizer in the run's directory, unless it is already there. `first_step`: the first
// step that uses it.
Status keep_run_tokenizer(aio::IoQueue& queue, const config::Config& config,
                          engine::TokenizerFiles tokenizer, std::int64_t first_step);

struct ChosenTokenizer {
  std::string name;           // --tokenizer: "bytes" or a file; empty: the run's
  std::string run_directory;  // empty: there is none
  std::vector<std::string> token_files;
};
// The tokenizer for a trained model. If the run has tokens that end a text, these are used. Warns
// about a file that is not the run's tokenizer.
Result<engine::TokenizerFiles> chosen_tokenizer(aio::IoQueue& queue, const ChosenTokenizer& chosen);

}  // namespace sluice::tools
