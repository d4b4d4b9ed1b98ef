// The tokenizer that a run's directory keeps, so that the run needs nothing else to be understood:
//
//   DIR/tokenizer/                       its files (tokenizer_files.h)
//   DIR/tokenizer/fingerprint.json       where there is no tokenizer.json: which one it would be,
//                                        {"vocabulary_sha256": "ab...", "tokens": 8192,
//                                         "source": "/data/train.bin.json"}
//   DIR/tokenizer.new/                   one on its way there
//   DIR/tokenizer-before-step-5/         the one that another took the place of
//
// It may be the only copy, so another one never overwrites it. tokenizer.json is written last: a
// folder that has it is complete.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/exchange/tokenizer_files.h"

namespace sluice::engine {

// What a run's directory keeps.
Result<TokenizerFiles> tokenizer_of_run(aio::IoQueue& queue, const std::string& directory);

// The run's, else that of its token files, if that is not another one. `directory`: empty where
// there is none.
Result<TokenizerFiles> find_tokenizer(aio::IoQueue& queue, const std::string& directory,
                                      const std::vector<std::string>& token_files);

struct KeepTokenizer {
  std::string directory;
  std::int64_t context_tokens = 0;
  std::int64_t first_step = 1;  // of those that are trained with it
};
// Keeps it, and returns what the directory keeps then. One that is there stays where the new one
// has no file; else it is set aside. Both are said. Of the same one its special tokens change.
Result<TokenizerFiles> keep_tokenizer(aio::IoQueue& queue, const TokenizerFiles& tokenizer,
                                      const KeepTokenizer& keep);

// Takes what is kept out of a run's directory, and nothing else; what was set aside stays.
Status remove_kept_tokenizer(aio::FileSystem& files, const std::string& directory);

}  // namespace sluice::engine
