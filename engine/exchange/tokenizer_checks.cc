#include "engine/exchange/tokenizer_checks.h"

#include "engine/checkpoint/checkpoint_names.h"
#include "engine/exchange/described_model.h"

namespace sluice::engine {
namespace {

// More than padding to a size that hardware likes.
constexpr std::uint64_t kManyTimes = 2;

}  // namespace

Status check_same_tokenizer(const TokenizerPair& pair) {
  if (pair.a.fingerprint.empty() || pair.b.fingerprint.empty() ||
      pair.a.fingerprint == pair.b.fingerprint)
    return {};
  return Error(ErrorCode::kInvalidArgument,
               pair.of_a + " and " + pair.of_b + " are of different tokenizers, " +
                   pair.a.description() + " and " + pair.b.description() +
                   ": the same number is another piece of text in each");
}

Result<TokenizerFiles> common_tokenizer(aio::IoQueue& queue,
                                        const std::vector<std::string>& token_files) {
  TokenizerFiles common;
  std::string first;
  for (const std::string& file : token_files) {
    SLUICE_ASSIGN_OR_RETURN(const TokenizerFiles one, tokenizer_of_tokens(queue, file));
    if (first.empty()) {
      common = one;
      first = file;
      continue;
    }
    SLUICE_RETURN_IF_ERROR(check_same_tokenizer({common, first, one, file}));
    if (!common.fingerprint.empty() || one.fingerprint.empty()) continue;
    common = one;
    first = file;
  }
  return common;
}

Result<TokenizerFiles> tokenizer_of_weights(aio::IoQueue& queue, const std::string& weights) {
  std::string folder = folder_of_weights(queue, weights);
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  SLUICE_ASSIGN_OR_RETURN(const bool is_checkpoint, queue.backend().files().exists(
                                                        folder + "/" + std::string(kManifestName)));
  if (!is_checkpoint) return tokenizer_of_run(queue, folder);
  const std::string run = run_directory_of(folder);
  return tokenizer_of_run(queue, run.empty() ? folder : run);
}

std::optional<std::string> vocabulary_hint(const TokenizerFiles& data, std::int64_t vocab,
                                           std::int64_t hidden) {
  const auto rows = static_cast<std::uint64_t>(vocab);
  if (data.tokens == 0 || rows / kManyTimes <= data.tokens) return std::nullopt;
  const std::uint64_t unused = rows - data.tokens;
  return "the model has " + std::to_string(rows) + " tokens and the tokenizer of the data " +
         std::to_string(data.tokens) + ": " + std::to_string(unused) + " rows of the embedding, " +
         std::to_string(unused * static_cast<std::uint64_t>(hidden)) +
         " parameters, are computed and updated for tokens that never occur; --set model.vocab=" +
         std::to_string(data.tokens) + " leaves them out";
}

}  // namespace sluice::engine
