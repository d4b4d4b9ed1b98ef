// Samples that `sluice data` shows of token files: documents, pieces of a text, or rows as a run
// sees them.
//
// Threads: one. Errors: as sentences; kInvalidArgument for a position that has no sample.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/data/sample_source.h"
#include "engine/data/token_corpus.h"
#include "tools/cli/marked_text.h"
#include "tools/cli/text_tokens.h"

namespace sluice::tools {

// Consecutive tokens of one file.
struct SamplePart {
  std::uint32_t file = 0;  // index in the corpus
  std::uint64_t first_token = 0;
  std::uint64_t tokens = 0;
  std::uint64_t targets = 0;  // among these tokens; the first one never is
  // Only for files that have documents:
  std::optional<std::uint64_t> document;
  std::uint64_t document_begin = 0;
  std::uint64_t document_tokens = 0;

  std::uint64_t shown = 0;            // how many leading tokens are shown, as text or as numbers
  std::vector<TextSegment> segments;  // text of the shown tokens; marked: targets
};

struct DataSample {
  std::optional<std::uint64_t> row;  // in the order in which the run sees them
  std::vector<SamplePart> parts;
  std::uint64_t padding = 0;  // positions of a row without a token
};

struct SampleChoice {
  std::uint64_t count = 0;
  std::uint64_t seed = 0;           // for random samples without repetition
  std::optional<std::uint64_t> at;  // else from the sample with this token of the first file on
  std::uint64_t piece_tokens = 0;   // for a text without rows
};

// Chooses samples, without their text. `rows`: null for documents or pieces of a text.
Result<std::vector<DataSample>> choose_samples(const data::TokenCorpus& corpus,
                                               const data::SampleSource* rows,
                                               const SampleChoice& choice);

// Fills in the first `most` tokens of the sample as text, or as numbers if `words` is null.
Status read_text(const data::TokenCorpus& corpus, TextTokens* words, std::uint64_t most,
                 DataSample& sample);

}  // namespace sluice::tools
