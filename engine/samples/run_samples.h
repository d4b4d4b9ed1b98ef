// RunSamples: the token files of a run, and the sequences made from them.
//
// Training samples come in a shuffled order. Validation samples come in order, from data.validation
// or from the end of data.train (data.validation_fraction). If the files have documents, a sample
// is a row of them (PackedRows); otherwise it is a window of the text. With
// data.validation_fraction the last documents of each file are for validation.
//
// Memory:  that of TokenDocuments and PackedRows.
// Threads: all const calls from any thread. Movable: its sources refer to files, whose address is
//          stable.
// Errors:  returned; they name the key.
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
    bool training = true;  // false: training files are opened only if validation needs them
    bool reads_all_tokens =
        true;  // refuses tokens beyond the vocabulary, and logs document statistics
  };
  static Result<RunSamples> open(const config::Config& config, const Wanted& wanted);

  // Null if not requested.
  const data::SampleSource* training() const { return training_.get(); }
  const data::TokenCorpus& training_corpus() const { return corpora_.front(); }
  // TokenCorpus::token_hash(), if training is requested and all tokens are read.
  std::uint64_t training_hash() const { return training_hash_; }
  // Null if there are none.
  const data::SampleSource* validation() const { return validation_.get(); }
  const data::TokenCorpus& validation_corpus() const { return corpora_.back(); }

 private:
  RunSamples() = default;
  // kTokens looks for tokens beyond the vocabulary, kHash hashes them too, kNothing only opens
  // files.
  enum class Reads : std::uint8_t { kNothing, kTokens, kHash };
  Status add_corpus(const config::Config& config, std::string_view key,
                    const std::vector<std::string>& paths, Reads reads);
  Status split(const config::Config& config, bool trains);

  std::vector<data::TokenCorpus>
      corpora_;  // training and validation, if opened; their addresses are stable
  std::uint64_t training_hash_ = 0;
  std::unique_ptr<data::SampleSource> training_;
  std::unique_ptr<data::SampleSource> validation_;
};

}  // namespace sluice::engine
