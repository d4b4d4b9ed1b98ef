// Exports a checkpoint's weights as a Hugging Face folder: model.safetensors (or shards with their
// index), the tokenizer if it is known, generation_config.json, a model card (model_card.h), and
// config.json. That file also names the tokens that end a text, and is written last: no library
// loads the folder without it.
//
// A checkpoint of adapters becomes a PEFT folder: adapter_model.safetensors, the tokenizer, and
// adapter_config.json, which is written last. Merged with its base, it becomes a model's folder as
// above.
//
// Memory:  a few MiB for any model size; for a merge, also the adapter of one product.
// Errors:  name the file. kAlreadyExists: the folder is not empty. After an error all written files
//          are removed, and the folder if it is empty then. kInvalidArgument: the base of a merge
//          is not that of the adapters.
// Killed:  no library loads the folder, and the next export into it fails with a list of what to
//          remove.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/checkpoint/checkpoint_reader.h"
#include "engine/exchange/tokenizer_files.h"
#include "engine/weights/dtype.h"

namespace sluice::engine {

struct ExportOptions {
  std::string folder;  // missing or empty
  DType dtype = DType::kF32;
  std::uint64_t max_shard_bytes = 0;  // 0: one file
  TokenizerFiles tokenizer;
  // For a checkpoint of adapters: the path of its base.
  std::string base;
  bool merged = false;
  std::string base_name;      // the base's name in the export; empty: BaseModel::name
  std::string run_directory;  // for the model card; empty: none
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;  // elements
};

struct Exported {
  std::uint64_t bytes = 0;  // of the weights' files
  std::size_t files = 0;
};

// Every chunk of the weights is verified as it is read.
Result<Exported> export_model(aio::IoQueue& queue, CheckpointReader& checkpoint,
                              const ExportOptions& options);

// kAlreadyExists unless the folder is empty or missing. The message points out the remains of an
// interrupted export.
Status check_empty(aio::FileSystem& files, const std::string& folder);

}  // namespace sluice::engine
