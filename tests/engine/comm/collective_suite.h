// Requirements on every transport: runs each collective on each group, and compares the results
// with sums and copies that the suite computes itself from the known contributions of all ranks.
//
// Every rank calls check_collectives() with the same options. It returns the errors as text, and
// nothing if all was right. GoogleTest is not used here, since ranks may be threads, processes, or
// started by mpirun.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/comm/host_links.h"

namespace sluice::engine {

// The memory of arrays in collectives. By default host memory, and no stream.
class SuiteMemory {
 public:
  virtual ~SuiteMemory() = default;
  virtual void* stream() { return nullptr; }
  // Zeros; valid until the next reset().
  virtual std::span<std::byte> take(std::size_t size_bytes);
  virtual void reset() { taken_.clear(); }
  virtual void write(std::span<std::byte> to, std::span<const std::byte> from);
  // Reads after all work on the stream.
  virtual void read(std::span<std::byte> to, std::span<const std::byte> from);

 private:
  std::vector<std::unique_ptr<std::byte[]>> taken_;  // NOLINT(modernize-avoid-c-arrays)
};

struct SuiteOptions {
  std::vector<RankPlace> places;  // one for each rank
  SuiteMemory* memory = nullptr;
  std::uint64_t large_piece_bytes = 0;  // one more size, on the world
  bool device = false;                  // no all_to_all in place
};

std::vector<std::string> check_collectives(Communicator& comm, const SuiteOptions& options);
// The same for a part of the world; the ranks are in two parts, which work at the same time.
std::vector<std::string> check_parts(Communicator& comm, const SuiteOptions& options);

// Hosts "a", "b", ... with these numbers of ranks, ranks by host: {2, 1} is a, a, b.
std::vector<RankPlace> places_of(std::span<const int> ranks_of_hosts);

}  // namespace sluice::engine
