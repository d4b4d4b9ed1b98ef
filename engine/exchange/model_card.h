// The model card of an export: README.md, which Hugging Face's hub displays, with metadata as YAML
// between two lines of "---". It contains what the run's checkpoint says. Nothing is guessed, and
// paths are shortened to a file and its folder.
//
// Errors: of writing. Information that is no longer available (a missing token file, a
//         configuration of another version) is left out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/checkpoint/checkpoint_reader.h"
#include "engine/exchange/base_model.h"
#include "engine/model/lora_recipe.h"
#include "engine/model/model_shape.h"
#include "engine/weights/dtype.h"

namespace sluice::engine {

struct ModelCard {
  std::string name;  // of the model: its folder's name
  CheckpointState state;
  ModelShape shape;
  LoraRecipe lora;      // what was trained
  bool merged = false;  // with the adapters' base
  std::uint64_t parameters = 0;
  DType dtype = DType::kF32;
  bool has_tokenizer = false;
  BaseModel base;

  // Adapters alone, for PEFT.
  bool is_adapter() const { return lora.exists() && !merged; }

  struct DataFile {
    std::string path;
    std::uint64_t tokens = 0;  // 0: the file is gone
    std::uint64_t documents = 0;
    std::uint64_t trained_tokens = 0;
  };
  std::vector<DataFile> training;
  std::vector<DataFile> validation;
};

std::string model_card_text(const ModelCard& card);

// What is needed to write generation_config.json and README.md for an export.
struct ExportMetadata {
  ModelShape shape;
  LoraRecipe lora;
  bool merged = false;
  DType dtype = DType::kF32;
  bool has_tokenizer = false;
  std::string base_name;      // ExportOptions::base_name
  std::string run_directory;  // the checkpoint's; empty: it is in none
  std::string folder;         // to write to
};
Status write_model_papers(aio::IoQueue& queue, const CheckpointReader& checkpoint,
                          const ExportMetadata& metadata);

// The generation_config.json of an exported model: with it, transformers' generate() behaves as
// with the model that the run began with. Adds the base's settings to the file in `folder`, which
// may have those of the tokenizer. Token settings come only from that file, as the base's may be
// beyond the vocabulary. If nothing is known, the file refers to config.json, in the form that
// transformers itself writes.
Status complete_generation_config(aio::IoQueue& queue, const BaseModel& base,
                                  const std::string& folder);

}  // namespace sluice::engine
