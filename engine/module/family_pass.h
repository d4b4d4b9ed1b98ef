// FamilyPass: forward and backward of one micro-batch by the engine's own units, for a ModuleRun
// whose module is of a family.
//
//   MicroBatchPass pass = passes.forward(batch, options);   pass.loss is there
//   passes.backward(pass, scale);                            gradients are in the run's sums
//
// Both are parts of one program (offload::micro_batch_passes()), which the run's StepEngine carries
// out as it does a Trainer's. What is between the two is in the MicroBatchPass: each unit's input,
// and what blocks keep where they keep it. The head makes the loss alone in forward, and once more
// with its gradient in backward, whose scale nobody knows before.
//
// Bits:    the same wherever anything lies, and whether blocks keep or recompute.
// Threads: one at a time, but not always the same one. On CUDA everything is enqueued on the
//          current stream; nothing waits for the device.
// Errors:  thrown, as LibTorch's or TrainError; then no unit is acquired, and ModuleRun's
//          abandon_step() ends the step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/model/documents.h"
#include "engine/model/model.h"
#include "engine/module/module_run.h"

namespace sluice::engine {

struct FamilyBatch {
  at::Tensor tokens;   // int64 [B, T], on the device that computes; so are the others
  at::Tensor targets;  // likewise; kIgnoredTarget counts for nothing
  std::optional<Documents> documents;
  double divisor = 1;  // of the sum of the targets' losses
};

class MicroBatchPass {
 public:
  // fp32, on the device.
  const at::Tensor& loss() const { return loss_; }

 private:
  friend class FamilyPass;

  FamilyBatch batch_;
  at::Tensor loss_;
  std::int64_t step_ = 0;
  std::int64_t micro_batch_ = 0;
  std::int64_t number_ = 0;
  bool drops_ = false;              // dropout
  bool has_backward_ = false;       // it may come, and has not
  std::vector<at::Tensor> inputs_;  // by unit; the head's stays
  std::vector<Saved> saved_;        // by unit; empty: it is made anew
};

class FamilyPass {
 public:
  // Of the parameters' rows of the token embedding, one that gets no gradient for being looked up
  // (torch's padding_idx); -1: none.
  struct Options {
    std::int64_t padding_row = -1;
  };
  // The run must outlive it; its layout is of this model.
  FamilyPass(ModuleRun& run, std::unique_ptr<Model> model, const Options& options);

  struct How {
    bool has_backward = false;  // is training, and not an evaluation
    bool drops = false;         // with dropout
    // Blocks keep what backward needs beyond their input: all, or those that the plan has; where
    // nothing is planned, all.
    bool keeps = false;
    // Of the passes of one micro-batch: each has dropout of its own.
    std::int64_t number = 0;
  };
  std::shared_ptr<MicroBatchPass> forward(FamilyBatch batch, const How& how);
  // Of scale * loss. Once.
  void backward(MicroBatchPass& pass, double scale);
  // [B, T, vocab], by the parameters as they are now.
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
