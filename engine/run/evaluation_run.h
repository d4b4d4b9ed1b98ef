// EvaluationRun: the mean loss of a weights file on data, for a model of any size. Parameters are
// loaded from the file to their configured tier (memory, or a separate store on NVMe), and go from
// there unit by unit through the compute device. No optimizer state or gradient is allocated.
//
// Threads: one.
// Errors:  create() and load() return them; evaluate() throws as Trainer does.
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
  // `plan` is the plan of an evaluation with this configuration, whose model.init_from names the
  // weights.
  static Result<std::unique_ptr<EvaluationRun>> create(const config::Config& config,
                                                       const MemoryPlan& plan);
  EvaluationRun(const EvaluationRun&) = delete;
  EvaluationRun& operator=(const EvaluationRun&) = delete;

  // Progress: units done, and units in total.
  using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;
  // Loads the weights; progress counts elements. If the configuration has adapters, loads those of
  // recipe.lora.adapter in addition to model.init_from.
  Status load(const Progress& progress);
  // Loads the weights of a checkpoint instead (load_model()).
  Status load(CheckpointReader& checkpoint, const Progress& progress);
  // Evaluates run.eval_batches micro-batches of the validation data, or all of it if that is less.
  // Progress counts samples.
  LossSum evaluate(const Progress& progress);
  // The loss of each document, over the same samples. kInvalidArgument for data without documents,
  // or where data.long_documents cuts documents or leaves them out.
  struct Documents {
    std::vector<DocumentLoss> losses;  // of the documents with a target that counts
    std::uint64_t documents = 0;       // number of all documents
    std::vector<std::string> files;    // indexed by DocumentLoss::file
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
