// Checks that data, a model and a run use the same tokenizer.
//
// Tokens are numbers: those of another tokenizer are valid too, but mean something else. If one of
// the two tokenizers is unknown, the check passes.
//
// Two tokenizer files match if their tokens mean the same, even if one has added tokens that the
// other lacks. Two fingerprints match only if they are equal.
//
// Errors: kInvalidArgument, with both tokenizers and where they are specified; those of reading
//         their files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/exchange/tokenizer_files.h"

namespace sluice::engine {

// `of_a`, `of_b`: what they belong to, such as "the training data".
struct TokenizerPair {
  const TokenizerFiles& a;
  std::string of_a;
  const TokenizerFiles& b;
  std::string of_b;
};
Status check_same_tokenizer(aio::IoQueue& queue, const TokenizerPair& pair);

// For two that match: the one with more information (its file, its fingerprint or its added
// tokens); `a` if equal.
const TokenizerFiles& fuller_of(const TokenizerFiles& a, const TokenizerFiles& b);

// The common tokenizer of all files. If several have a sidecar, the one with most information.
Result<TokenizerFiles> common_tokenizer(aio::IoQueue& queue,
                                        const std::vector<std::string>& token_files);

// The tokenizer of weights, if a file next to them names it. It may be in their folder, in the
// tokenizer folder of the run that contains them, or in that of the run whose checkpoint they are.
Result<TokenizerFiles> tokenizer_of_weights(aio::IoQueue& queue, const std::string& weights);

// A warning if a model has many more tokens than the tokenizer of its data.
std::optional<std::string> vocabulary_hint(const TokenizerFiles& data, std::int64_t vocab,
                                           std::int64_t hidden);

}  // namespace sluice::engine
