// Weights of NVMe paths: how the stripes of a run's stores are dealt to drives of different speed
// and room. A path of weight w gets w stripes of every sum of all weights.
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

#include "offload/machine_speeds.h"

namespace sluice::offload {

// What a path does by itself, measured.
struct PathSpeed {
  DuplexRates rates;
  int sharers = 1;  // paths of the run on its drive, itself included: each gets that part of it
};

// The bytes that a drive reads and writes back in a second, as state is: both at once as long as
// there is both to do. 0: it was not measured.
double swap_bytes_per_s(const DuplexRates& rates);

// By what each does with state; equal where one was not measured.
std::vector<int> weights_by_speed(std::span<const PathSpeed> paths);

// The rates of all together, where each drive gives what it gave alone: whichever is slowest for
// its weight holds up the others.
DuplexRates striped_rates(std::span<const PathSpeed> paths, std::span<const int> weights);
// What was measured with the weights `from`, with `to`.
DuplexRates with_other_weights(const DuplexRates& measured, std::span<const PathSpeed> paths,
                               std::span<const int> from, std::span<const int> to);

// The most bytes that fit, striped: whichever path is first full ends it.
std::uint64_t striped_room(std::span<const std::uint64_t> room_bytes, std::span<const int> weights);

// The given weights, if `needed_bytes` fit with them; else those of the paths that would be full
// lowered, and the rest dealt to the others in their proportions. Nothing: no weights are enough.
std::optional<std::vector<int>> weights_within(std::span<const std::uint64_t> room_bytes,
                                               std::span<const int> weights,
                                               std::uint64_t needed_bytes);

// "3:1"
std::string to_text(std::span<const int> weights);

}  // namespace sluice::offload
