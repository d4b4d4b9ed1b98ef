// RunData: the token files of a run, and the batches of them.
//
// Training samples come in a shuffled order; validation samples are those of data.validation, or of
// the end of data.train (data.validation_fraction), in order. Where the files have documents, a
// sample is a row of them (packed_rows.h), and with data.validation_fraction the last documents of
// each file are for validation; else it is a window of the text.
//
// Threads: one.
// Errors:  open() as values that name the key; batches throw TrainError.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/budget/memory_plan.h"
#include "engine/config/config.h"
#include "engine/data/sample_source.h"
#include "engine/data/token_corpus.h"
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

  std::uint64_t samples_per_epoch() const { return training_->count(); }
  // Which samples come when, and what is in them, as text that is the same only where they are.
  const std::string& order() const { return order_; }
  bool has_validation() const { return validation_ != nullptr; }
  // run.eval_batches micro-batches, or all there are if that is less.
  std::uint64_t validation_samples() const;

  // Samples [first, first + samples) in micro-batches; the last one may be smaller. A batch to
  // train on must not outlive this, which it asks for its source.
  StepBatch training_batch(std::uint64_t first, std::uint64_t samples, at::Device device) const;
  StepBatch validation_batch(std::uint64_t first, std::uint64_t samples, at::Device device) const;

 private:
  explicit RunData(const config::Config& config);
  Status add_corpus(const config::Config& config, const char* key,
                    const std::vector<std::string>& paths);
  Status make_sources(const config::Config& config, RunPurpose purpose);
  Status split(const config::Config& config, RunPurpose purpose);
  Result<std::unique_ptr<data::SampleSource>> source(const data::TokenCorpus& corpus,
                                                     std::optional<std::uint64_t> seed) const;
  std::string source_of(std::uint64_t begin, std::uint64_t end) const;
  StepBatch read(const data::SampleSource& source, std::uint64_t first, std::uint64_t samples,
                 at::Device device) const;

  std::int64_t micro_batch_;
  std::int64_t sequence_tokens_;
  data::LongDocuments longer_;
  std::uint64_t validation_batches_;
  bool reads_all_tokens_ = true;
  std::string order_;
  std::vector<data::TokenCorpus> corpora_;  // training and validation, if opened; they stay there
  std::unique_ptr<data::SampleSource> training_;
  std::unique_ptr<data::SampleSource> validation_;
};

}  // namespace sluice::engine
