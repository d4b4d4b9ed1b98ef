// Weights of NVMe paths: how the stripes of a run's stores are distributed over drives of different
// speed and free space. In every cycle a path of weight w gets w stripes; a cycle has as many
// stripes as all weights add up to.
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

// Rates of a link or a drive in two directions.
struct DuplexRates {
  double in_bytes_per_s = 0;       // alone: host to GPU; read
  double out_bytes_per_s = 0;      // alone: GPU to host; write
  double in_both_bytes_per_s = 0;  // both at once, the rate of each direction
  double out_both_bytes_per_s = 0;
};

// The measured speed of one path.
struct PathSpeed {
  DuplexRates rates;
  int sharers = 1;  // paths of the run on its drive, itself included, that share the drive equally
};

// The bytes per second that a drive both reads and writes back, as for state: both directions run
// at once as long as there is work for both. 0: not measured.
double swap_bytes_per_s(const DuplexRates& rates);

// Weights proportional to each path's rate for state; equal if one was not measured.
std::vector<int> weights_by_speed(std::span<const PathSpeed> paths);

// The rates of all paths together if each drive performs as it did alone: the path that is slowest
// for its weight limits the others.
DuplexRates striped_rates(std::span<const PathSpeed> paths, std::span<const int> weights);
// Converts rates measured with the weights `from` to the weights `to`.
DuplexRates with_other_weights(const DuplexRates& measured, std::span<const PathSpeed> paths,
                               std::span<const int> from, std::span<const int> to);

// The most bytes that fit when striped: the path that fills up first sets the limit.
std::uint64_t striped_room(std::span<const std::uint64_t> room_bytes, std::span<const int> weights);

// The given weights, if `needed_bytes` fit with them. Otherwise the weights of paths that would be
// full are lowered, and the rest is distributed over the others in proportion. Empty: it fits with
// no weights.
std::optional<std::vector<int>> weights_within(std::span<const std::uint64_t> room_bytes,
                                               std::span<const int> weights,
                                               std::uint64_t needed_bytes);

// "3:1"
std::string to_text(std::span<const int> weights);

}  // namespace sluice::swap
