#include "swap/stripe_weights.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "aio/check.h"
#include "aio/striped_file.h"

namespace sluice::swap {
namespace {

double sum_of(std::span<const int> weights) {
  return std::accumulate(weights.begin(), weights.end(), 0.0);
}

double striped_rate(std::span<const PathSpeed> paths, std::span<const int> weights,
                    double DuplexRates::*direction) {
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < paths.size(); ++i)
    least = std::min(least, paths[i].rates.*direction / paths[i].sharers / weights[i]);
  return paths.empty() ? 0 : least * sum_of(weights);
}

constexpr double DuplexRates::*kDirections[] = {
    &DuplexRates::in_bytes_per_s, &DuplexRates::out_bytes_per_s, &DuplexRates::in_both_bytes_per_s,
    &DuplexRates::out_both_bytes_per_s};

// Shares of the needed bytes that fit in each path's room, as close to the weights as possible. A
// path that would be full gets what it has room for, and the others share the rest.
std::optional<std::vector<double>> shares_within(std::span<const std::uint64_t> room_bytes,
                                                 std::span<const int> weights,
                                                 double needed_bytes) {
  std::vector<double> shares(weights.size(), 0);
  std::vector<bool> full(weights.size(), false);
  for (bool changed = true; changed;) {
    changed = false;
    double left = 1;
    double open_weights = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (full[i])
        left -= shares[i];
      else
        open_weights += weights[i];
    }
    if (open_weights == 0) return std::nullopt;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (full[i]) continue;
      shares[i] = left * weights[i] / open_weights;
      const double most = static_cast<double>(room_bytes[i]) / needed_bytes;
      if (shares[i] <= most) continue;
      shares[i] = most;
      full[i] = changed = true;
    }
  }
  return shares;
}

// The shares as `total` stripes, with no path getting more than it has room for.
std::optional<std::vector<int>> dealt(const std::vector<double>& shares,
                                      std::span<const std::uint64_t> room_bytes,
                                      double needed_bytes, int total) {
  std::vector<int> weights;
  std::vector<int> most;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const double full = static_cast<double>(room_bytes[i]) / needed_bytes * total;
    most.push_back(static_cast<int>(std::min<double>(full, aio::StripedFile::kMaxWeight)));
    if (most[i] < 1) return std::nullopt;
    weights.push_back(std::clamp(static_cast<int>(shares[i] * total), 1, most[i]));
  }
  const auto lacks = [&](std::size_t i) { return shares[i] * total - weights[i]; };
  for (int left = total - std::accumulate(weights.begin(), weights.end(), 0); left != 0; --left) {
    if (left < 0) return std::nullopt;
    std::size_t next = shares.size();
    for (std::size_t i = 0; i < shares.size(); ++i)
      if (weights[i] < most[i] && (next == shares.size() || lacks(i) > lacks(next))) next = i;
    if (next == shares.size()) return std::nullopt;
    ++weights[next];
  }
  return weights;
}

// How close the weights are to the wanted ones, 1 at best: the relative rate if each drive's rate
// equals its wanted weight.
double likeness(std::span<const int> weights, std::span<const int> wanted) {
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < weights.size(); ++i)
    least = std::min(least, static_cast<double>(wanted[i]) / weights[i]);
  return least * sum_of(weights) / sum_of(wanted);
}

std::vector<int> without_common_divisor(std::vector<int> weights) {
  int divisor = 0;
  for (const int weight : weights) divisor = std::gcd(divisor, weight);
  for (int& weight : weights) weight /= divisor;
  return weights;
}

}  // namespace

double swap_bytes_per_s(const DuplexRates& rates) {
  const double in = rates.in_bytes_per_s;
  const double out = rates.out_bytes_per_s;
  if (!(in > 0) || !(out > 0)) return 0;
  const double in_both = std::min(rates.in_both_bytes_per_s, in);
  const double out_both = std::min(rates.out_both_bytes_per_s, out);
  const double faster = std::max(in_both, out_both);
  if (!(faster > 0)) return 1 / (1 / in + 1 / out);
  // When the faster direction is done, the other one continues alone.
  const double left = 1 - std::min(in_both, out_both) / faster;
  return 1 / (1 / faster + left / (in_both > out_both ? out : in));
}

std::vector<int> weights_by_speed(std::span<const PathSpeed> paths) {
  std::vector<double> speeds;
  for (const PathSpeed& path : paths) speeds.push_back(swap_bytes_per_s(path.rates) / path.sharers);
  return aio::StripedFile::weights_from_speeds(speeds);
}

DuplexRates striped_rates(std::span<const PathSpeed> paths, std::span<const int> weights) {
  SLUICE_CHECK(paths.size() == weights.size(), "each path has a weight");
  DuplexRates rates;
  for (const auto direction : kDirections)
    rates.*direction = striped_rate(paths, weights, direction);
  return rates;
}

DuplexRates with_other_weights(const DuplexRates& measured, std::span<const PathSpeed> paths,
                               std::span<const int> from, std::span<const int> to) {
  const DuplexRates before = striped_rates(paths, from);
  const DuplexRates after = striped_rates(paths, to);
  DuplexRates rates = measured;
  for (const auto direction : kDirections)
    if (before.*direction > 0) rates.*direction *= after.*direction / before.*direction;
  return rates;
}

std::uint64_t striped_room(std::span<const std::uint64_t> room_bytes,
                           std::span<const int> weights) {
  SLUICE_CHECK(room_bytes.size() == weights.size(), "each path has a weight");
  if (weights.empty()) return 0;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < weights.size(); ++i)
    least = std::min(least, static_cast<double>(room_bytes[i]) / weights[i]);
  return static_cast<std::uint64_t>(least * sum_of(weights));
}

std::optional<std::vector<int>> weights_within(std::span<const std::uint64_t> room_bytes,
                                               std::span<const int> weights,
                                               std::uint64_t needed_bytes) {
  if (striped_room(room_bytes, weights) >= needed_bytes)
    return std::vector<int>(weights.begin(), weights.end());
  const auto needed = static_cast<double>(needed_bytes);
  const auto shares = shares_within(room_bytes, weights, needed);
  if (!shares) return std::nullopt;
  std::optional<std::vector<int>> best;
  double best_likeness = 0;
  // Starts with few stripes per cycle: more stripes must be better by a clear margin.
  constexpr double kBetter = 1.02;
  const int paths = static_cast<int>(weights.size());
  for (int total = paths; total <= paths * aio::StripedFile::kMaxWeight; ++total) {
    auto tried = dealt(*shares, room_bytes, needed, total);
    if (!tried) continue;
    const double like = likeness(*tried, weights);
    if (best && like < kBetter * best_likeness) continue;
    best = std::move(tried);
    best_likeness = like;
  }
  if (best) best = without_common_divisor(*std::move(best));
  return best;
}

std::string to_text(std::span<const int> weights) {
  std::string text;
  for (const int weight : weights) text += (text.empty() ? "" : ":") + std::to_string(weight);
  return text;
}

}  // namespace sluice::swap
