// Which tokenizer the data and the model of a command are of, compared before anything is computed,
// and kept with the run.
//
// Errors: kInvalidArgument where they differ, with the flag that goes on anyway.
#pragma once

#include <string>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/config/config.h"
#include "engine/exchange/tokenizer_files.h"

namespace CLI {  // NOLINT(readability-identifier-naming): named by CLI11
class App;
}

namespace sluice::tools {

inline constexpr const char* kAnyTokenizer = "--any-tokenizer";
void add_any_tokenizer(CLI::App& command, bool& any);

// That of data.train and data.validation, for a run that begins: compared with one another, and
// with that of model.init_from; the shape that is beside those weights is compared with the
// model's. Says on standard error what the user should know of it.
Result<engine::TokenizerFiles> check_training_data(aio::IoQueue& queue,
                                                   const config::Config& config, bool any);
// The same for data that weights (model.init_from) are evaluated on.
Status check_evaluation_data(aio::IoQueue& queue, const config::Config& config, bool any);

struct ResumedTokenizer {
  std::string checkpoint;          // the folder that the run goes on from
  engine::TokenizerFiles of_data;  // check_training_data()'s
  bool any = false;
};
// Compares it with that of the run that wrote the checkpoint; returns the one to keep.
Result<engine::TokenizerFiles> check_resumed_data(aio::IoQueue& queue,
                                                  const ResumedTokenizer& resumed);

// Writes it into the run's directory, beside the one that is kept there, if it is another; `anew`:
// the one that is there will go in any case. put_run_tokenizer() then gives it its place, for which
// the disk needs no room.
Status stage_run_tokenizer(aio::IoQueue& queue, const config::Config& config,
                           engine::TokenizerFiles tokenizer, bool anew);
Status put_run_tokenizer(aio::FileSystem& files, const std::string& directory);
// Removes what was written and did not get its place.
Status discard_run_tokenizer(aio::FileSystem& files, const std::string& directory);

struct ChosenTokenizer {
  std::string name;           // --tokenizer: "bytes" or a file; empty: the run's
  std::string run_directory;  // empty: there is none
  std::vector<std::string> token_files;
};
// Of a trained model. The tokens that end a text are the run's where it has some; a file that is
// not the run's tokenizer is warned of.
Result<engine::TokenizerFiles> chosen_tokenizer(aio::IoQueue& queue, const ChosenTokenizer& chosen);

}  // namespace sluice::tools
