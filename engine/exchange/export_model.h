// A checkpoint's weights as a Hugging Face folder: model.safetensors (or shards with their index),
// the tokenizer where it is known, generation_config.json, a model card (model_card.h), and
// config.json, which names the tokens that end a text too and is written last: without it no
// library takes the folder for a model.
//
// A checkpoint of adapters becomes a folder of PEFT's: adapter_model.safetensors, the tokenizer,
// and adapter_config.json, which is written last; or, merged with its base, a model's as above.
//
// Memory:  a few MiB, whatever the size of the model; merged, the adapter of one product.
// Errors:  name the file. kAlreadyExists: the folder is not empty. After any error nothing is left
//          of what was written, and the folder is removed where nothing else is in it.
//          kInvalidArgument: adapters are to be merged with another base than theirs.
// Killed:  the folder counts for no library, and the next export into it is refused with what to
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
  std::string folder;  // not there, or empty
  DType dtype = DType::kF32;
  std::uint64_t max_shard_bytes = 0;  // 0: one file
  TokenizerFiles tokenizer;
  // Of a checkpoint of adapters: where its base is.
  std::string base;
  bool merged = false;
  std::string base_name;      // what the folder calls it; empty: as BaseModel::name
  std::string run_directory;  // for the model card; empty: there is none
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;  // elements
};

struct Exported {
  std::uint64_t bytes = 0;  // of the weights' files
  std::size_t files = 0;
};

// Every chunk of the weights is verified on its way.
Result<Exported> export_model(aio::IoQueue& queue, CheckpointReader& checkpoint,
                              const ExportOptions& options);

// kAlreadyExists unless the folder is empty, or not there; of what an export left that was stopped
// it says so.
Status check_empty(aio::FileSystem& files, const std::string& folder);

}  // namespace sluice::engine
