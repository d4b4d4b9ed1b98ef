// FamilyModel: a module of transformers as the model of a family, whose units the engine computes
// itself: its shape by the module's config, and its units with the module's names of parameters.
//
// Threads: it does not change. Errors: kInvalidArgument, with what the family does not compute.
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
  // `text`: of a config.json, as the module's config writes it.
  static Result<FamilyModel> read(const std::string& text);

  const ModelShape& shape() const { return shape_; }
  // Units and parameters by the module's names, without rows that only a slot has.
  std::vector<ModuleUnit> units() const;

  // A configuration whose model this is. Without a length of sequences that was asked for, passes
  // are planned for the longest that one trains on unasked on a GPU, and not at all on the CPU.
  // `checkpoints`: the module's blocks are computed again in backward, unless the configuration
  // says otherwise.
  struct Asked {
    bool length = false;  // data.sequence_length is given
    bool checkpoints = false;
    bool on_gpu = false;  // this machine's, or one that is described
  };
  config::Config configured(config::Config config, const Asked& asked) const;
  // The rest is of such a configuration.
  ModelOptions options(const config::Config& config) const;
  ModuleLayout layout(const config::Config& config) const;
  // The planner's whole answer, of such a configuration; `options` may describe ranks and a
  // machine. `assumptions` gets what it takes for granted.
  Result<RunPlan> plan(const config::Config& config, const Asked& asked, PlanRunOptions options,
                       std::vector<std::string>& assumptions) const;
  // Where the planner puts what it leaves open, if there is a choice; measures the machine unless
  // `cache_path` has that. Of several ranks the first one's: all of them call it with their link.
  Result<ModulePlaces> places(const config::Config& config, const Asked& asked, Communicator* link,
                              const std::string& cache_path) const;

  // What the units make of tokens, int64 [B, T], with these values by unit and parameter: logits.
  // Without dropout; where the values are.
  at::Tensor logits(const std::vector<std::vector<at::Tensor>>& values,
                    const at::Tensor& tokens) const;

 private:
  explicit FamilyModel(ModelShape shape) : shape_(std::move(shape)) {}
  ModelLayout named(const ModelOptions& options) const;

  ModelShape shape_;
};

}  // namespace sluice::engine
