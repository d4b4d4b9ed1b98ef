// RunData: the samples of a run (engine/samples/run_samples.h) in batches.
//
// Threads: one.
// Errors:  open() as values that name the key; batches throw TrainError.
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
  // For an evaluation training files are opened only where validation data is a part of them.
  static Result<RunData> open(const config::Config& config, RunPurpose purpose);
  // What open() would refuse for training, except tokens beyond the vocabulary, which would take
  // reading everything: before minutes are spent. In milliseconds, but for documents, whose masks
  // are read.
  static Status check(const config::Config& config);
  // Sequences in one pass over the training data, just as quickly, with the same errors.
  static Result<std::uint64_t> count_samples(const config::Config& config);

  std::uint64_t samples_per_epoch() const { return training().count(); }
  // Which samples come when, and what is in them, as text that is the same only where they are.
  const std::string& order() const { return order_; }
  bool has_validation() const { return samples_.validation() != nullptr; }
  const data::SampleSource& validation() const { return *samples_.validation(); }
  const data::TokenCorpus& validation_corpus() const { return samples_.validation_corpus(); }
  // run.eval_batches micro-batches, or all there are if that is less.
  std::uint64_t validation_samples() const;

  // Whole micro-batches, each of consecutive samples from the given one on. The batch must not
  // outlive this, which it asks for its source.
  StepBatch training_batch(std::vector<std::uint64_t> firsts, at::Device device) const;
  // Samples [first, first + samples) in micro-batches; the last one may be smaller.
  StepBatch validation_batch(std::uint64_t first, std::uint64_t samples, at::Device device) const;

 private:
  RunData(const config::Config& config, RunSamples samples);
  const data::SampleSource& training() const { return *samples_.training(); }
  std::string source_of(std::uint64_t begin, std::uint64_t end) const;
  // Adds a micro-batch of so many samples.
  void read(const data::SampleSource& source, std::uint64_t first, std::int64_t rows,
            at::Device device, StepBatch& batch) const;

  std::int64_t micro_batch_;
  std::int64_t sequence_tokens_;
  std::uint64_t validation_batches_;
  RunSamples samples_;
  std::string order_;
};

}  // namespace sluice::engine
