// The tokenizer stored in a run's directory, which makes the run self-contained:
//
//   DIR/tokenizer/                       its files (tokenizer_files.h)
//   DIR/tokenizer/fingerprint.json       without a tokenizer.json: identifies the tokenizer,
//                                        {"vocabulary_sha256": "ab...", "tokens": 8192,
//                                         "source": "/data/train.bin.json"}
//   DIR/tokenizer.new/                   a tokenizer being written
//   DIR/tokenizer-before-step-5/         a tokenizer that was replaced
//
// A stored tokenizer may be the only copy, so it is never overwritten. tokenizer.json is written
// last: a folder that has it is complete.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/exchange/tokenizer_files.h"

namespace sluice::engine {

// The tokenizer that a run's directory has.
Result<TokenizerFiles> tokenizer_of_run(aio::IoQueue& queue, const std::string& directory);

// The run's tokenizer, or else that of its token files, if these agree. `directory`: empty if there
// is no run.
Result<TokenizerFiles> find_tokenizer(aio::IoQueue& queue, const std::string& directory,
                                      const std::vector<std::string>& token_files);

struct KeepTokenizer {
  std::string directory;
  std::int64_t context_tokens = 0;
  std::int64_t first_step = 1;  // the first step trained with it
};
// Stores the tokenizer, and returns what the directory then has. If another tokenizer is there, it
// stays if the new one has no file, and is set aside otherwise; both cases are logged. If the same
// tokenizer is there, only missing files and its special tokens are updated.
Result<TokenizerFiles> keep_tokenizer(aio::IoQueue& queue, const TokenizerFiles& tokenizer,
                                      const KeepTokenizer& keep);

// Removes the stored tokenizer's files from a run's directory, and nothing else. Tokenizers that
// were set aside stay.
Status remove_kept_tokenizer(aio::FileSystem& files, const std::string& directory);

}  // namespace sluice::engine
