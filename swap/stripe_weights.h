// Weights of NVMe paths: how the stripes of a run's stores are dealt to drives of different speed
// and room. A path of weight w gets w stripes in every cycle of as many as all weights add up to.
//
// Paths are in the order of the configuration.
//
// Threads: any; pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace sluice::swap {

// Of a link or a drive with two directions.
struct DuplexRates {
  double in_bytes_per_s = 0;       // alone: host to GPU; read
  double out_bytes_per_s = 0;      // alone: GPU to host; write
  double in_both_bytes_per_s = 0;  // both at once, the rate of each
  double out_both_bytes_per_s = 0;
};

// What a path does by itself, measured.
struct PathSpeed {
  DuplexRates rates;
  int sharers = 1;  // paths of the run on its drive, itself included, that share it equally
};

// The bytes that a drive reads and writes back in a second, as for state: both at once while there
// is both to do. 0: not measured.
double swap_bytes_per_s(const DuplexRates& rates);

// By each path's rate for state; equal where one was not measured.
std::vector<int> weights_by_speed(std::span<const PathSpeed> paths);

// The rates of all paths together if each drive performs as it did alone: the slowest for its
// weight holds up the others.
DuplexRates striped_rates(std::span<const PathSpeed> paths, std::span<const int> weights);
// What was measured with the weights `from`, converted to `to`.
DuplexRates with_other_weights(const DuplexRates& measured, std::span<const PathSpeed> paths,
                               std::span<const int> from, std::span<const int> to);

// The most bytes that fit, striped: the first path to be full sets the limit.
std::uint64_t striped_room(std::span<const std::uint64_t> room_bytes, std::span<const int> weights);

// The given weights, if `needed_bytes` fit with them; else with those of the paths that would be
// full lowered, and the rest dealt to the others in proportion. Nothing: no weights are enough.
std::optional<std::vector<int>> weights_within(std::span<const std::uint64_t> room_bytes,
                                               std::span<const int> weights,
                                               std::uint64_t needed_bytes);

// "3:1"
std::string to_text(std::span<const int> weights);

}  // namespace sluice::swap
