#include "engine/generate/token_sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace sluice::engine {
namespace {

constexpr double kRemoved = -std::numeric_limits<double>::infinity();

void keep_top_k(std::vector<double>& scores, std::int64_t top_k) {
  if (top_k <= 0 || static_cast<std::size_t>(top_k) >= scores.size()) return;
  std::vector<double> sorted = scores;
  const auto kth = sorted.begin() + (top_k - 1);
  std::nth_element(sorted.begin(), kth, sorted.end(), std::greater<>());
  const double least = *kth;
  for (double& score : scores)
    if (score < least) score = kRemoved;
}

// Softmax in place.
void normalise(std::vector<double>& scores) {
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - largest);
  for (double& score : scores) score /= sum;
}

void keep_top_p(std::vector<double>& scores, double top_p) {
  if (top_p >= 1) return;
  std::vector<double> probabilities = scores;
  normalise(probabilities);
  std::vector<std::size_t> ascending(scores.size());
  std::iota(ascending.begin(), ascending.end(), 0);
  std::stable_sort(ascending.begin(), ascending.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a] < scores[b]; });
  ascending.pop_back();
  double removed = 0;
  for (const std::size_t token : ascending) {
    removed += probabilities[token];
    if (removed > 1 - top_p) return;
    scores[token] = kRemoved;
  }
}

void check(std::span<const float> logits) {
  if (std::none_of(logits.begin(), logits.end(), [](float logit) { return std::isnan(logit); }))
    return;
  throw std::runtime_error(
      "the model's logits are not numbers: its weights are damaged, or overflow in this precision "
      "(try --set bf16.enabled=false --set fp16.enabled=false)");
}

}  // namespace

Status validate(const SamplingOptions& options) {
  const auto refused = [](const std::string& sentence) {
    return Error(ErrorCode::kInvalidArgument, sentence);
  };
  if (!(options.temperature >= 0 && std::isfinite(options.temperature)))
    return refused("--temperature must be 0 (greedy) or more");
  if (options.top_k < 0) return refused("--top-k must be 1 or more, or 0 for all tokens");
  if (!(options.top_p > 0 && options.top_p <= 1))
    return refused("--top-p must be more than 0, and at most 1 (all tokens)");
  return {};
}

std::vector<double> token_probabilities(std::span<const float> logits,
                                        const SamplingOptions& options) {
  check(logits);
  if (options.temperature == 0) {
    std::vector<double> greedy(logits.size(), 0);
    const auto largest = std::max_element(logits.begin(), logits.end()) - logits.begin();
    greedy[static_cast<std::size_t>(largest)] = 1;
    return greedy;
  }
  std::vector<double> scores(logits.begin(), logits.end());
  for (double& score : scores) score /= options.temperature;
  keep_top_k(scores, options.top_k);
  keep_top_p(scores, options.top_p);
  normalise(scores);
  return scores;
}

std::int64_t TokenSampler::next(std::span<const float> logits) {
  const std::vector<double> probabilities = token_probabilities(logits, options_);
  if (options_.temperature == 0)
    return std::max_element(probabilities.begin(), probabilities.end()) - probabilities.begin();
  const double drawn = random_.unit();
  double sum = 0;
  std::int64_t last = 0;  // used if rounding leaves the sum below `drawn`
  for (std::size_t token = 0; token < probabilities.size(); ++token) {
    if (probabilities[token] == 0) continue;
    last = static_cast<std::int64_t>(token);
    sum += probabilities[token];
    if (drawn < sum) break;
  }
  return last;
}

}  // namespace sluice::engine
