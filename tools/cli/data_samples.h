// What `sluice data` shows of token files: documents, pieces of a text, or rows as a run sees them.
//
// Threads: one. Errors: as sentences; kInvalidArgument where a position shows nothing.
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
  std::uint32_t file = 0;  // of the corpus
  std::uint64_t first_token = 0;
  std::uint64_t tokens = 0;
  std::uint64_t targets = 0;  // among them; the first one never is
  // Of files that have documents:
  std::optional<std::uint64_t> document;
  std::uint64_t document_begin = 0;
  std::uint64_t document_tokens = 0;

  std::uint64_t shown = 0;            // the first of the tokens, as text or as numbers
  std::vector<TextSegment> segments;  // of those; marked: targets
};

struct DataSample {
  std::optional<std::uint64_t> row;  // in the order in which the run sees them
  std::vector<SamplePart> parts;
  std::uint64_t padding = 0;  // places of a row without a token
};

struct SampleChoice {
  std::uint64_t count = 0;
  std::uint64_t seed = 0;           // of those chosen by chance, each once
  std::optional<std::uint64_t> at;  // else: the one that holds this token of the first file, and
                                    // those behind it
  std::uint64_t piece_tokens = 0;   // of a text that is no row
};

// Without their text. `rows`: null for documents, or pieces of a text.
Result<std::vector<DataSample>> choose_samples(const data::TokenCorpus& corpus,
                                               const data::SampleSource* rows,
                                               const SampleChoice& choice);

// The first `most` tokens of the sample as text; as numbers where `words` is null.
Status read_text(const data::TokenCorpus& corpus, TextTokens* words, std::uint64_t most,
                 DataSample& sample);

}  // namespace sluice::tools
