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
#include <span>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/budget/memory_plan.h"
#include "engine/config/config.h"
#include "engine/data/token_corpus.h"
#include "engine/model/model.h"
#include "engine/run/run_data.h"
#include "engine/runtime/evaluation_pass.h"
#include "engine/runtime/resources.h"

namespace sluice::engine {

// DocumentLosses: sums the token losses of an evaluation by document.
//
// Rows come in any order, and a document may span several of them: a piece that the end of a row
// cuts off continues in another row. There its first input is the token before it, without earlier
// context. Sums are double: over a piece in token order, over a document in the order of its
// pieces, over all documents in their order. They are therefore the same for every micro-batch size
// and every order of rows.
//
// Memory:  32 bytes a piece. Threads: one. Errors: none.
struct DocumentLoss {
  std::uint32_t file = 0;  // file of the corpus
  std::uint64_t document = 0;
  std::uint64_t targets = 0;  // targets that count
  double sum = 0;             // sum of their losses, nats
  double mean() const { return sum / static_cast<double>(targets); }
};

class DocumentLosses {
 public:
  // The losses of one piece. `first_token`: position in the file of the piece's first token, which
  // is only an input. `targets` are kIgnoredSample where a token does not count.
  struct Piece {
    std::uint32_t file = 0;
    std::uint64_t first_token = 0;
    std::span<const float> losses;
    std::span<const std::int64_t> targets;
  };
  void add(const Piece& piece);

  // The documents that have a target, in the order of files and documents. Every file must have
  // documents.
  std::vector<DocumentLoss> of_documents(const data::TokenCorpus& corpus) const;

 private:
  struct PieceSum {
    std::uint32_t file;
    std::uint64_t first_token;
    std::uint64_t targets;
    double sum;
  };
  std::vector<PieceSum> pieces_;
};

// The last lines of a table of documents.
struct DocumentSummary {
  double mean = 0;            // over all targets
  std::uint64_t targets = 0;  // in all documents
  double mean_of_documents = 0;
  std::size_t best = 0;  // index in the list; the first one among equals
  std::size_t worst = 0;
};
// Needs at least one document. A loss that is not finite counts as the worst.
DocumentSummary summary_of(std::span<const DocumentLoss> documents);

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
