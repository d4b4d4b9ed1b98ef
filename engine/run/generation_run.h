// GenerationRun: what a model predicts next, for a model of any size: parameters go from a
// checkpoint to where the configuration has them (memory, or a store of their own on NVMe), and
// from there unit by unit through the compute device, one pass a token. Keys and values of what
// was fed stay there.
//
// The model sees data.sequence_length tokens, at most its context. When they are full, their last
// half is fed again, with the new token, as if the text began there.
//
// Threads: one.
// Errors:  create() and load() as values; feed() throws as Trainer does.
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
#include "engine/model/kv_cache.h"
#include "engine/model/model.h"
#include "engine/runtime/resources.h"

namespace sluice::engine {

class GenerationRun {
 public:
  // `plan` is that of a generation with this configuration.
  static Result<std::unique_ptr<GenerationRun>> create(const config::Config& config,
                                                       const MemoryPlan& plan);
  GenerationRun(const GenerationRun&) = delete;
  GenerationRun& operator=(const GenerationRun&) = delete;

  using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;
  // load_model().
  Status load(CheckpointReader& checkpoint, const Progress& progress);

  // The tokens that come next: first one or more, later one at a time. Returns the logits of what
  // follows. Of more tokens than the model sees, the last ones are taken.
  std::vector<float> feed(std::span<const std::int64_t> tokens);

  RunDrives& drives() { return parts_->drives(); }
  offload::ParamStats stats() const { return parts_->parameters().stats(); }

 private:
  GenerationRun(const config::Config& config, const MemoryPlan& plan)
      : config_(config), plan_(plan) {}
  std::vector<float> pass(std::span<const std::int64_t> tokens);

  const config::Config config_;
  const MemoryPlan plan_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Resources> parts_;
  std::unique_ptr<KvCache> cache_;
  std::vector<std::int64_t> seen_;  // the tokens in the cache
};

}  // namespace sluice::engine
