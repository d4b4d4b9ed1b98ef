// FamilyModel: a transformers module as the model of a built-in family, whose units the engine
// computes itself. It has the shape from the module's config, and units with the module's parameter
// names.
//
// Threads: immutable.
// Errors:  kInvalidArgument, naming what the family does not support.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/budget/memory_plan.h"
#include "engine/config/config.h"
#include "engine/model/model.h"
#include "engine/module/module_run.h"

namespace sluice::engine {

class FamilyModel {
 public:
  // `text`: a config.json, as written by the module's config.
  static Result<FamilyModel> read(const std::string& text);

  const ModelShape& shape() const { return shape_; }
  // Units and parameters under the module's names, without the padding rows of GPU slots.
  std::vector<ModuleUnit> units() const;

  // The configuration of this model. If no sequence length was configured, passes are planned on a
  // GPU for the default maximum length, and on the CPU not at all. `checkpoints`: the module's
  // blocks are recomputed in backward, unless the configuration says otherwise.
  struct Asked {
    bool length = false;  // data.sequence_length is set
    bool checkpoints = false;
    bool on_gpu = false;  // of this machine, or of a described one
  };
  config::Config configured(config::Config config, const Asked& asked) const;
  // The following take a result of configured().
  ModelOptions options(const config::Config& config) const;
  ModuleLayout layout(const config::Config& config) const;
  // The planner's complete result; `options` may describe ranks and a machine. The planner's
  // assumptions are stored in `assumptions`.
  Result<RunPlan> plan(const config::Config& config, const Asked& asked, PlanRunOptions options,
                       std::vector<std::string>& assumptions) const;
  // The planner's places for everything that is left open, if there is a choice. Measures the
  // machine unless `cache_path` has its speeds. With several ranks it is a collective over `link`,
  // and returns the first rank's result.
  Result<ModulePlaces> places(const config::Config& config, const Asked& asked, Communicator* link,
                              const std::string& cache_path) const;

  // Computes logits from tokens, int64 [B, T], and these values by unit and parameter, on the
  // values' device and without dropout.
  at::Tensor logits(const std::vector<std::vector<at::Tensor>>& values,
                    const at::Tensor& tokens) const;

 private:
  explicit FamilyModel(ModelShape shape) : shape_(std::move(shape)) {}
  ModelLayout named(const ModelOptions& options) const;

  ModelShape shape_;
};

}  // namespace sluice::engine
