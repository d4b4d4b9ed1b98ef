// A checkpoint as a Hugging Face folder, as `sluice export` and sluice.save() have it: which base
// and which tokenizer go with it.
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
  std::string to;          // not there yet, or empty
  std::string checkpoint;  // of a run's directory; empty: the newest
  // Nothing: that of the model that the run began with, where it is known, else fp32. Of adapters
  // by themselves fp32, as PEFT has them.
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
  std::string path;  // of the checkpoint
  std::string base;  // of merged adapters
  bool is_adapter = false;
  engine::DType dtype = engine::DType::kF32;
  engine::TokenizerFiles tokenizer;
};
Result<ExportedCheckpoint> export_checkpoint(aio::IoQueue& queue, const ExportRequest& request);

// Warnings about a tokenizer that is not known.
void warn_of_exported(const engine::TokenizerFiles& tokenizer);

}  // namespace sluice::tools
