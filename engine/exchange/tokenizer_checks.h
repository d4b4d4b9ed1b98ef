// Whether the tokens of data, of a model and of a run are one tokenizer's.
//
// Tokens are numbers: of another tokenizer they are as valid, and mean something else. Where one of
// the two is not known nothing is refused.
//
// Two files whose tokens mean the same are one tokenizer, though one has added tokens that the
// other has not; of fingerprints alone only equal ones are.
//
// Errors: kInvalidArgument, with both tokenizers and who says so; those of reading their files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/exchange/tokenizer_files.h"

namespace sluice::engine {

// `of_a`, `of_b`: whose they are, as in "the training data".
struct TokenizerPair {
  const TokenizerFiles& a;
  std::string of_a;
  const TokenizerFiles& b;
  std::string of_b;
};
Status check_same_tokenizer(aio::IoQueue& queue, const TokenizerPair& pair);

// Of two that are one: the one that says more, by its file, its fingerprint or its added tokens;
// `a` where both do.
const TokenizerFiles& fuller_of(const TokenizerFiles& a, const TokenizerFiles& b);

// Of all of these files; the fullest, where any has a sidecar.
Result<TokenizerFiles> common_tokenizer(aio::IoQueue& queue,
                                        const std::vector<std::string>& token_files);

// Of weights, where something beside them says so: in their folder, in the tokenizer folder of the
// run that they lie in, or of the run whose checkpoint they are.
Result<TokenizerFiles> tokenizer_of_weights(aio::IoQueue& queue, const std::string& weights);

// A sentence where a model has many more tokens than the tokenizer of its data.
std::optional<std::string> vocabulary_hint(const TokenizerFiles& data, std::int64_t vocab,
                                           std::int64_t hidden);

}  // namespace sluice::engine
