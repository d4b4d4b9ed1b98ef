// EvaluationRun: the mean loss of a weights file on data, for a model of any size: parameters go
// from the file to where the configuration has them (memory, or a store of their own on NVMe), and
// from there unit by unit through the compute device. No part of an optimizer or a gradient is
// created.
//
// Threads: one.
// Errors:  create() and load() as values; evaluate() throws as Trainer does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/budget/memory_plan.h"
#include "engine/config/config.h"
#include "engine/model/model.h"
#include "engine/run/document_losses.h"
#include "engine/run/run_data.h"
#include "engine/runtime/evaluation_pass.h"
#include "engine/runtime/resources.h"

namespace sluice::engine {

class EvaluationRun {
 public:
  // `plan` is that of an evaluation with this configuration, whose model.init_from are the weights.
  static Result<std::unique_ptr<EvaluationRun>> create(const config::Config& config,
                                                       const MemoryPlan& plan);
  EvaluationRun(const EvaluationRun&) = delete;
  EvaluationRun& operator=(const EvaluationRun&) = delete;

  // Progress: how much is done, out of how much.
  using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;
  // The weights: elements. Where the configuration has adapters, those of recipe.lora.adapter
  // beside model.init_from.
  Status load(const Progress& progress);
  // Instead: those of a checkpoint (load_model()).
  Status load(CheckpointReader& checkpoint, const Progress& progress);
  // Over run.eval_batches micro-batches of the validation data, or all of it if that is less;
  // counts samples.
  LossSum evaluate(const Progress& progress);
  // Of each document, over the same samples. Data without documents, and where a document is cut or
  // left out (data.long_documents), are refused: kInvalidArgument.
  struct Documents {
    std::vector<DocumentLoss> losses;  // of those with a target that counts
    std::uint64_t documents = 0;       // all that there are
    std::vector<std::string> files;    // DocumentLoss::file counts in them
  };
  Result<Documents> evaluate_documents(const Progress& progress);

  RunDrives& drives() { return parts_->drives(); }
  offload::ParamStats stats() const { return parts_->parameters().stats(); }

 private:
  EvaluationRun(const config::Config& config, const MemoryPlan& plan)
      : config_(config), plan_(plan) {}
  void add_losses(std::uint64_t first, const StepBatch& batch, DocumentLosses& losses);

  const config::Config config_;
  const MemoryPlan plan_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<RunData> data_;
  std::unique_ptr<Resources> parts_;
};

}  // namespace sluice::engine
