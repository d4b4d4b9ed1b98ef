// Exports a checkpoint as a Hugging Face folder, for `sluice export` and sluice.save(); finds the
// base and the tokenizer that go with it.
//
// Threads: one. Errors: those of engine/exchange/export_model.h.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/exchange/export_model.h"

namespace sluice::tools {

struct ExportRequest {
  std::string from;        // a run's directory, or the folder of one checkpoint
  std::string to;          // absent, or an empty folder
  std::string checkpoint;  // in a run's directory; empty: the newest.
  // Default: the type of the model that the run began with if it is known, else fp32. For adapters
  // alone the default is fp32, like PEFT's.
  std::optional<engine::DType> dtype = {};
  std::uint64_t max_shard_bytes = 0;
  std::string tokenizer;  // a tokenizer.json, or "bytes"; empty: the run's
  bool merged = false;
  std::string base;
  std::string base_name;  // ExportOptions::base_name
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};
};

struct ExportedCheckpoint {
  engine::Exported files;
  std::string path;  // the checkpoint's folder
  std::string base;  // the base that adapters were merged into
  bool is_adapter = false;
  engine::DType dtype = engine::DType::kF32;
  engine::TokenizerFiles tokenizer;
};
Result<ExportedCheckpoint> export_checkpoint(aio::IoQueue& queue, const ExportRequest& request);

// Warns about an unknown tokenizer.
void warn_of_exported(const engine::TokenizerFiles& tokenizer);

}  // namespace sluice::tools
