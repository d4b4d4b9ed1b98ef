// Imports a Hugging Face folder of a supported model as a run's directory, as if a run of that
// model had just begun. It has DIR/checkpoints/step-000000000 (fp32 masters, zero moments),
// DIR/tokenizer/ with the tokenizer's files and the tokens that end a text, and
// DIR/base_model.json. DIR/config.json, a run file with the model's shape, is written last.
//
// Memory:  some MiB for any model size.
// Errors:  name the file. kInvalidArgument: an unsupported architecture; lists the differences.
//          kAlreadyExists: the directory is not empty. After any error it has no config.json.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"

namespace sluice::engine {

struct ImportOptions {
  std::string from;       // a folder with config.json, and weights as safetensors
  std::string directory;  // missing or empty
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;  // elements
};

struct Imported {
  std::string checkpoint;  // path of its folder
  std::uint64_t parameters = 0;
  bool tokenizer = false;
  std::vector<std::string> notes;  // changes compared with the original, as sentences
};

Result<Imported> import_model(aio::IoQueue& queue, const ImportOptions& options);

}  // namespace sluice::engine
