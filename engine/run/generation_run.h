// GenerationRun: next-token prediction with a model of any size. Parameters are loaded from a
// checkpoint to their configured tier (memory, or a separate store on NVMe). From there they go
// unit by unit through the compute device, one pass a token. The keys and values of earlier tokens
// stay on the device. A text that begins like the one before is fed from where they differ.
//
// The model sees data.sequence_length tokens, at most its context. When these are full, the last
// half of them is fed again, with the new token, as if the text began there.
//
// Threads: one.
// Errors:  create() and load() return them; feed() throws as Trainer does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "aio/result.h"
#include "engine/budget/memory_plan.h"
#include "engine/checkpoint/checkpoint_reader.h"
#include "engine/config/config.h"
#include "engine/model/model.h"
#include "engine/run/token_feed.h"
#include "engine/runtime/resources.h"

namespace sluice::engine {

class GenerationRun {
 public:
  // `plan` is the plan of a generation with this configuration.
  static Result<std::unique_ptr<GenerationRun>> create(const config::Config& config,
                                                       const MemoryPlan& plan);
  GenerationRun(const GenerationRun&) = delete;
  GenerationRun& operator=(const GenerationRun&) = delete;

  using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;
  // See load_model().
  Status load(CheckpointReader& checkpoint, const Progress& progress);

  // See TokenFeed.
  std::vector<float> feed(std::span<const std::int64_t> tokens) { return feed_->feed(tokens); }
  std::size_t restart_with(std::span<const std::int64_t> text) { return feed_->restart_with(text); }

  RunDrives& drives() { return parts_->drives(); }
  offload::ParamStats stats() const { return parts_->parameters().stats(); }

 private:
  GenerationRun(const config::Config& config, const MemoryPlan& plan)
      : config_(config), plan_(plan) {}

  const config::Config config_;
  const MemoryPlan plan_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Resources> parts_;
  std::unique_ptr<TokenFeed> feed_;
};

}  // namespace sluice::engine
