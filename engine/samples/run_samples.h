// RunSamples: the token files of a run, and the sequences that it makes of them.
//
// Training samples come in a shuffled order; validation samples are those of data.validation, or of
// the end of data.train (data.validation_fraction), in order. Where the files have documents, a
// sample is a row of them (packed_rows.h), and with data.validation_fraction the last documents of
// each file are for validation; else it is a window of the text.
//
// Memory:  as TokenDocuments and PackedRows.
// Threads: all const calls from any thread. Movable: its sources refer to files, which stay.
// Errors:  values that name the key.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aio/result.h"
#include "engine/config/config.h"
#include "engine/data/sample_source.h"
#include "engine/data/token_corpus.h"

namespace sluice::engine {

data::TokenFile::Options file_options(const config::Data& data);

class RunSamples {
 public:
  struct Wanted {
    bool training = true;  // else training files are opened only where validation needs them
    bool reads_all_tokens = true;  // refuses tokens beyond the vocabulary, and reports on documents
  };
  static Result<RunSamples> open(const config::Config& config, const Wanted& wanted);

  // Null: not wanted.
  const data::SampleSource* training() const { return training_.get(); }
  const data::TokenCorpus& training_corpus() const { return corpora_.front(); }
  // TokenCorpus::token_hash(), where training is wanted and all tokens are read.
  std::uint64_t training_hash() const { return training_hash_; }
  // Null: there are none.
  const data::SampleSource* validation() const { return validation_.get(); }
  const data::TokenCorpus& validation_corpus() const { return corpora_.back(); }

 private:
  RunSamples() = default;
  // Reads all tokens for a hash, or to find those beyond the vocabulary, or only what opening does.
  enum class Reads : std::uint8_t { kNothing, kTokens, kHash };
  Status add_corpus(const config::Config& config, std::string_view key,
                    const std::vector<std::string>& paths, Reads reads);
  Status split(const config::Config& config, bool trains);

  std::vector<data::TokenCorpus> corpora_;  // training and validation, if opened; they stay there
  std::uint64_t training_hash_ = 0;
  std::unique_ptr<data::SampleSource> training_;
  std::unique_ptr<data::SampleSource> validation_;
};

}  // namespace sluice::engine
