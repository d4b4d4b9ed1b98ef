// Prints where in a token file each of a run's first samples begins, for references that must read
// the same tokens: print_samples FILE SEQUENCE_TOKENS SHUFFLE_SEED COUNT.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/data/sampler.h"
#include "engine/data/token_corpus.h"

int main(int count, char** arguments) {
  using namespace sluice::data;
  if (count != 5) return 2;
  const std::vector<std::string> paths = {arguments[1]};
  const auto corpus = TokenCorpus::open(paths, {.type = TokenType::kUint16});
  if (!corpus.ok()) {
    std::fprintf(stderr, "%s\n", corpus.error().message().c_str());
    return 1;
  }
  const std::vector<TokenRange> whole = corpus->whole();
  const auto sampler =
      ShuffledSampler::create(whole, {.sequence_tokens = std::strtoull(arguments[2], nullptr, 10),
                                      .seed = std::strtoull(arguments[3], nullptr, 10)});
  if (!sampler.ok()) {
    std::fprintf(stderr, "%s\n", sampler.error().message().c_str());
    return 1;
  }
  const std::uint64_t samples = std::strtoull(arguments[4], nullptr, 10);
  for (std::uint64_t k = 0; k < samples; ++k)
    std::printf("%llu\n", static_cast<unsigned long long>(sampler->at(k).first_token));
  return 0;
}
