#include "tools/measure/synthetic_run.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>

namespace sluice::tools {
namespace {

// The number of tokens in a file of a few MB: repeated random tokens are still random.
constexpr std::uint64_t kMostTokens = std::uint64_t{8} << 20;

}  // namespace

Result<SyntheticTokens> use_synthetic_tokens(config::Config& config) {
  const auto samples = static_cast<std::uint64_t>(config.batch.train);
  const auto sequence = static_cast<std::uint64_t>(config.data.sequence_tokens);
  SLUICE_ASSIGN_OR_RETURN(
      auto tokens,
      SyntheticTokens::create({.folder = std::filesystem::temp_directory_path(),
                               .tokens = std::max(samples * sequence + 1,
                                                  std::min(64 * samples * sequence, kMostTokens)),
                               .vocab = static_cast<std::uint64_t>(config.model.vocab)}));
  config.data.train = {tokens.path()};
  config.data.validation.clear();
  config.data.validation_fraction = 0;
  config.data.token_type = tokens.type();
  config.model.init_from.clear();
  config.run.resume.clear();
  config.run.checkpoint_every_steps = 0;
  config.run.checkpoint_minutes = 0;
  config.run.checkpoint_at_end = false;
  if (config.run.dir.empty()) config.run.dir = "measured";
  return tokens;
}

}  // namespace sluice::tools
