// What `sluice data` prints, as text and as JSON.
//
// Threads: any. Errors: none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/token_corpus.h"
#include "engine/data/token_sidecar.h"
#include "engine/exchange/tokenizer_files.h"
#include "tools/cli/data_samples.h"
#include "tools/cli/marked_text.h"

namespace sluice::tools {

struct FileReport {
  std::string path;
  std::string type;  // the token type
  bool has_documents = false;
  std::uint64_t vocab_size = 0;  // 0: unknown
  data::TokenCensus census;
  data::TokenRecord record;
  engine::TokenizerFiles tokenizer;
};

// The rows of one epoch.
struct RowsReport {
  std::uint64_t row_tokens = 0;
  std::uint64_t rows = 0;
  std::uint64_t documents = 0;  // documents that rows were chosen from; 0: windows of a text
  std::uint64_t predictions = 0;
  std::uint64_t targets = 0;
  std::string outcome;  // SampleSource's outcome
  std::uint64_t validation_rows = 0;
  std::uint64_t padding() const { return rows * row_tokens - predictions; }
};

struct DataReport {
  std::vector<FileReport> files;
  std::optional<RowsReport> rows;
  std::vector<DataSample> samples;
};

std::string data_text(const DataReport& report, Marks marks);
// Invalid UTF-8 becomes U+FFFD; every character beyond ASCII is escaped.
std::string data_json(const DataReport& report);

}  // namespace sluice::tools
