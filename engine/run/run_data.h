// RunData: the samples of a run (engine/samples/run_samples.h) in batches.
//
// Threads: one.
// Errors:  open() returns errors that name the key; batches throw TrainError.
#pragma once

#include <cstdint>
#include <string>

#include "aio/result.h"
#include "engine/budget/memory_plan.h"
#include "engine/config/config.h"
#include "engine/data/sample_source.h"
#include "engine/data/token_corpus.h"
#include "engine/samples/run_samples.h"
#include "engine/step/step_batch.h"

namespace sluice::engine {

class RunData {
 public:
  // For an evaluation, training files are opened only if the validation data is a part of them.
  static Result<RunData> open(const config::Config& config, RunPurpose purpose);
  // Checks early, within milliseconds, what open() would refuse for training. Token values beyond
  // the vocabulary are not checked: that would read everything. Documents take longer, since their
  // masks are read.
  static Status check(const config::Config& config);
  // Sequences in one pass over the training data, as fast as check() and with the same errors.
  static Result<std::uint64_t> count_samples(const config::Config& config);

  std::uint64_t samples_per_epoch() const { return training().count(); }
  // Identifies the content of the samples and their order: two texts are equal only if both are.
  const std::string& order() const { return order_; }
  bool has_validation() const { return samples_.validation() != nullptr; }
  const data::SampleSource& validation() const { return *samples_.validation(); }
  const data::TokenCorpus& validation_corpus() const { return samples_.validation_corpus(); }
  // run.eval_batches micro-batches, or all samples if that is less.
  std::uint64_t validation_samples() const;

  // Whole micro-batches; each has consecutive samples beginning at its entry of `firsts`. The batch
  // must not outlive this, because it calls source_of().
  StepBatch training_batch(std::vector<std::uint64_t> firsts, at::Device device) const;
  // Samples [first, first + samples) in micro-batches; the last one may be smaller.
  StepBatch validation_batch(std::uint64_t first, std::uint64_t samples, at::Device device) const;

 private:
  RunData(const config::Config& config, RunSamples samples);
  const data::SampleSource& training() const { return *samples_.training(); }
  std::string source_of(std::uint64_t begin, std::uint64_t end) const;
  // Adds a micro-batch of `rows` samples.
  void read(const data::SampleSource& source, std::uint64_t first, std::int64_t rows,
            at::Device device, StepBatch& batch) const;

  std::int64_t micro_batch_;
  std::int64_t sequence_tokens_;
  std::uint64_t validation_batches_;
  RunSamples samples_;
  std::string order_;
};

}  // namespace sluice::engine
