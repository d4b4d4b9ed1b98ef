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
#include "engine/model/documents.h"
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
  Result<ModulePlacement> places(const config::Config& config, const Asked& asked,
                                 Communicator& link, const std::string& cache_path) const;

  // Computes logits from tokens, int64 [B, T], and these values by unit and parameter, on the
  // values' device and without dropout.
  at::Tensor logits(const std::vector<std::vector<at::Tensor>>& values,
                    const at::Tensor& tokens) const;

 private:
  explicit FamilyModel(ModelShape shape) : shape_(std::move(shape)) {}
  ModelLayout named(const ModelOptions& options) const;

  ModelShape shape_;
};

// FamilyPass: forward and backward of one micro-batch by the engine's own units, for a ModuleRun
// whose module belongs to a family.
//
//   MicroBatchPass pass = passes.forward(batch, options);   pass.loss is available
//   passes.backward(pass, scale);                            gradients are in the run's sums
//
// Both are parts of one program (offload::micro_batch_passes()), which the run's StepEngine
// executes as it does for a Trainer. Between the two calls, the MicroBatchPass holds each unit's
// input, and the tensors that blocks save. In forward the head computes only the loss. In backward
// it computes the loss again with its gradient, because the scale is not known earlier.
//
// Bits:    independent of placement, and of whether blocks save or recompute activations.
// Threads: one at a time, but not always the same one. On CUDA everything is enqueued on the
//          current stream; nothing waits for the device.
// Errors:  thrown, by LibTorch or as TrainError. Then no unit is acquired, and ModuleRun's
//          abandon_step() ends the step.
struct FamilyBatch {
  at::Tensor tokens;   // int64 [B, T], on the compute device, like the others
  at::Tensor targets;  // int64 [B, T]; kIgnoredTarget is ignored
  std::optional<Documents> documents;
  double divisor = 1;  // of the sum of the targets' losses
};

class MicroBatchPass {
 public:
  // fp32, on the compute device.
  const at::Tensor& loss() const { return loss_; }

 private:
  friend class FamilyPass;

  FamilyBatch batch_;
  at::Tensor loss_;
  std::int64_t step_ = 0;
  std::int64_t micro_batch_ = 0;
  std::int64_t number_ = 0;
  bool drops_ = false;              // uses dropout
  bool has_backward_ = false;       // backward may come, and has not been called
  std::vector<at::Tensor> inputs_;  // by unit; the head's stays
  std::vector<Saved> saved_;        // by unit; empty: recomputed in backward
};

class FamilyPass {
 public:
  // The row of the token embedding that gets no gradient from lookups (torch's padding_idx); -1:
  // none.
  struct Options {
    std::int64_t padding_row = -1;
  };
  // The run must outlive it; its layout must be of this model.
  FamilyPass(ModuleRun& run, std::unique_ptr<Model> model, const Options& options);

  struct How {
    bool has_backward = false;  // a training pass, not an evaluation
    bool drops = false;         // uses dropout
    // Blocks save what backward needs in addition to their input: the planned ones, or all blocks
    // if nothing is planned.
    bool keeps = false;
    // The number of the pass within its micro-batch: each pass has its own dropout.
    std::int64_t number = 0;
  };
  std::shared_ptr<MicroBatchPass> forward(FamilyBatch batch, const How& how);
  // Backward of scale * loss. Call it at most once per pass.
  void backward(MicroBatchPass& pass, double scale);
  // [B, T, vocab], from the current parameters.
  at::Tensor logits(const MicroBatchPass& pass);
  ModuleRun& run() const { return run_; }

 private:
  class Computation;
  PassContext context(const MicroBatchPass& pass, int unit) const;
  bool keeps_activations(int unit) const;

  ModuleRun& run_;
  const std::unique_ptr<Model> model_;
  const Options options_;
};

}  // namespace sluice::engine
