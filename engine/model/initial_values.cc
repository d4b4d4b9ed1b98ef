#include "engine/model/initial_values.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "aio/check.h"
#include "engine/model/counter_random.h"

namespace sluice::engine {
namespace {

// About 10 us of work, enough to justify waking a thread.
constexpr std::size_t kPieceElements = 1024;

constexpr double kLeastOfLog = 0.01;  // as in transformers, so that no logarithm is infinite

bool is_constant(const ParameterSpec& parameter) {
  return parameter.initial_std == 0 && parameter.initial_bound == 0 &&
         parameter.initial_log_bound == 0;
}

std::uint64_t seed_of(std::uint64_t seed, std::string_view name) {
  std::uint64_t mixed = extend_seed(seed, name.size());
  for (const char c : name) mixed = extend_seed(mixed, static_cast<unsigned char>(c));
  return mixed;
}

}  // namespace

// Wichura, "Algorithm AS 241: The Percentage Points of the Normal Distribution", 1988, PPND7.
// Mostly multiplications and one division, which round alike on every machine.
double normal_quantile(double probability) {
  const double q = probability - 0.5;
  if (std::abs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * (((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179) /
           (((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1);
  }
  double r = std::sqrt(-std::log(q < 0 ? probability : 1 - probability));
  double tail = 0;
  if (r <= 5) {
    r -= 1.6;
    tail = (((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777) /
           ((0.12021132975 * r + 0.73700164250) * r + 1);
  } else {
    r -= 5;
    tail = (((0.017337203997 * r + 0.42868294337) * r + 3.0812263860) * r + 6.6579051150) /
           ((0.012258202635 * r + 0.24197894225) * r + 1);
  }
  return q < 0 ? -tail : tail;
}

void fill_initial(const ParameterSpec& parameter, std::uint64_t seed, std::uint64_t first_element,
                  std::span<float> values) {
  SLUICE_CHECK(first_element + values.size() <= parameter.elements,
               "initial values behind the end of a parameter");
  if (is_constant(parameter)) {
    std::fill(values.begin(), values.end(), parameter.initial_value);
    return;
  }
  const std::uint64_t own_seed = seed_of(seed, parameter.name);
  const double std = parameter.initial_std;
  const double bound = parameter.initial_bound;
  const double log_bound = parameter.initial_log_bound;
  const auto value = [&](double probability) {
    if (bound > 0) return bound * (2 * probability - 1);
    if (log_bound > 0) return std::log(kLeastOfLog + (log_bound - kLeastOfLog) * probability);
    return std * normal_quantile(probability);
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t bits = counter_bits(own_seed, first_element + i) >> 11;
    const double probability = (static_cast<double>(bits) + 0.5) * 0x1p-53;
    values[i] = static_cast<float>(value(probability));
  }
}

void fill_initial(const ParameterSpec& parameter, std::uint64_t seed, std::uint64_t first_element,
                  std::span<float> values, aio::Executor& executor) {
  const std::size_t most = (values.size() + kPieceElements - 1) / kPieceElements;
  const std::size_t pieces = std::min(most, static_cast<std::size_t>(executor.threads()));
  if (is_constant(parameter) || pieces < 2) {
    fill_initial(parameter, seed, first_element, values);
    return;
  }
  executor.run(static_cast<int>(pieces), [&](int piece) {
    const std::size_t begin = values.size() * static_cast<std::size_t>(piece) / pieces;
    const std::size_t end = values.size() * (static_cast<std::size_t>(piece) + 1) / pieces;
    fill_initial(parameter, seed, first_element + begin, values.subspan(begin, end - begin));
  });
}

}  // namespace sluice::engine
