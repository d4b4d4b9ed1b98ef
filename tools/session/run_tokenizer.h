// Which tokenizers the data and the model of a command use, compared before anything is computed,
// and kept with the run.
//
// Errors: kInvalidArgument where they differ, naming the flag that continues anyway.
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

// That of data.train and data.validation, compared with one another; and check_first_data(), except
// where run.resume says that the run may not begin. Reports on standard error what the user should
// know about it.
Result<engine::TokenizerFiles> check_training_data(aio::IoQueue& queue,
                                                   const config::Config& config, bool any);
// For a run that begins at step 0: weights (model.init_from) and adapters (recipe.lora.adapter) are
// compared with the model, and the weights' tokenizer with the data's; returns the one to keep.
Result<engine::TokenizerFiles> check_first_data(aio::IoQueue& queue, const config::Config& config,
                                                const engine::TokenizerFiles& data, bool any);
// The same for data that weights (model.init_from) are evaluated on.
Status check_evaluation_data(aio::IoQueue& queue, const config::Config& config, bool any);
// A warning where check_training_data() would refuse, for commands that need no data.
void warn_of_tokenizers(const config::Config& config, aio::IoWatchdog& watchdog);

struct ResumedTokenizer {
  std::string checkpoint;          // the folder that the run continues from
  engine::TokenizerFiles of_data;  // check_training_data()'s
  bool any = false;
};
// Compares it with that of the run that wrote the checkpoint; returns the one to keep.
Result<engine::TokenizerFiles> check_resumed_data(aio::IoQueue& queue,
                                                  const ResumedTokenizer& resumed);

// Into the run's directory, if it is not the one already there. `first_step`: of those to come.
Status keep_run_tokenizer(aio::IoQueue& queue, const config::Config& config,
                          engine::TokenizerFiles tokenizer, std::int64_t first_step);

struct ChosenTokenizer {
  std::string name;           // --tokenizer: "bytes" or a file; empty: the run's
  std::string run_directory;  // empty: there is none
  std::vector<std::string> token_files;
};
// Of a trained model. The tokens that end a text are the run's where it has some; a file that is
// not the run's tokenizer causes a warning.
Result<engine::TokenizerFiles> chosen_tokenizer(aio::IoQueue& queue, const ChosenTokenizer& chosen);

}  // namespace sluice::tools
