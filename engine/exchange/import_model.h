// A Hugging Face folder that holds a GPT-2 as a run's directory, as if a run of that model had just
// begun: DIR/checkpoints/step-000000000 (fp32 masters, moments of zero), DIR/tokenizer/ with the
// tokenizer's files and the tokens that end a text, DIR/base_model.json, and DIR/config.json, a run
// file with the model's shape, written last.
//
// Memory:  some MiB, whatever the size of the model.
// Errors:  name the file. kInvalidArgument: another architecture, with what is different.
//          kAlreadyExists: the directory is not empty. After any error it holds no config.json.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"

namespace sluice::engine {

struct ImportOptions {
  std::string from;       // config.json, and weights as safetensors
  std::string directory;  // not there, or empty
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;  // elements
};

struct Imported {
  std::string checkpoint;  // its folder
  std::uint64_t parameters = 0;
  bool tokenizer = false;
  std::vector<std::string> notes;  // what is not as it was, in sentences
};

Result<Imported> import_model(aio::IoQueue& queue, const ImportOptions& options);

}  // namespace sluice::engine
