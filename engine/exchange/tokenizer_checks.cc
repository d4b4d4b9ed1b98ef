#include "engine/exchange/tokenizer_checks.h"

#include <tuple>

#include "engine/checkpoint/checkpoint_names.h"
#include "engine/exchange/described_model.h"
#include "engine/exchange/kept_tokenizer.h"
#include "engine/weights/quoting.h"

namespace sluice::engine {
namespace {

// More than padding to a hardware-friendly size.
constexpr std::uint64_t kManyTimes = 2;

std::string meaning(const std::string& text) { return text.empty() ? "nothing" : in_quotes(text); }

// The difference, as a clause; empty: none that matters.
Result<std::string> difference_of(aio::IoQueue& queue, const TokenizerPair& pair) {
  using Kind = TokenizerFiles::Kind;
  if (pair.a.kind == Kind::kUnknown || pair.b.kind == Kind::kUnknown)
    return std::string("the same token may be different text in each");
  SLUICE_ASSIGN_OR_RETURN(const auto a, vocabulary_of(queue, pair.a));
  SLUICE_ASSIGN_OR_RETURN(const auto b, vocabulary_of(queue, pair.b));
  const auto found = first_difference(a, b);
  if (!found) return std::string();
  return "token " + std::to_string(found->token) + " is " + meaning(found->a) +
         " in the first and " + meaning(found->b) + " in the second";
}

}  // namespace

Status check_same_tokenizer(aio::IoQueue& queue, const TokenizerPair& pair) {
  if (pair.a.fingerprint.empty() || pair.b.fingerprint.empty() ||
      pair.a.fingerprint == pair.b.fingerprint)
    return {};
  SLUICE_ASSIGN_OR_RETURN(const std::string difference, difference_of(queue, pair));
  if (difference.empty()) return {};
  return Error(ErrorCode::kInvalidArgument,
               pair.of_a + " and " + pair.of_b + " use different tokenizers, " +
                   pair.a.description() + " and " + pair.b.description() + ": " + difference);
}

const TokenizerFiles& fuller_of(const TokenizerFiles& a, const TokenizerFiles& b) {
  const auto says = [](const TokenizerFiles& one) {
    return std::tuple(one.kind != TokenizerFiles::Kind::kUnknown, !one.fingerprint.empty(),
                      one.tokens);
  };
  return says(b) > says(a) ? b : a;
}

Result<TokenizerFiles> common_tokenizer(aio::IoQueue& queue,
                                        const std::vector<std::string>& token_files) {
  TokenizerFiles common;
  std::string of_common;
  for (const std::string& file : token_files) {
    SLUICE_ASSIGN_OR_RETURN(const TokenizerFiles one, tokenizer_of_tokens(queue, file));
    SLUICE_RETURN_IF_ERROR(check_same_tokenizer(queue, {common, of_common, one, file}));
    if (!of_common.empty() && &fuller_of(common, one) == &common) continue;
    common = one;
    of_common = file;
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
  return "the model has " + std::to_string(rows) + " tokens, but the tokenizer of the data has " +
         std::to_string(data.tokens) + ": " + std::to_string(unused) + " rows of the embedding, " +
         std::to_string(unused * static_cast<std::uint64_t>(hidden)) +
         " parameters, are computed and updated for tokens that never occur; to leave them out: "
         "--set model.vocab=" +
         std::to_string(data.tokens) + " leaves them out";
}

}  // namespace sluice::engine
