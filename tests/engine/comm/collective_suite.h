// What every transport has to do: each collective, on each group, against sums and copies that the
// suite works out by itself from what all ranks are known to give.
//
// Every rank calls check_collectives() with the same options; it returns what was wrong, in words,
// and nothing when all was right. No GoogleTest here: ranks are threads, processes, or started by
// mpirun.
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

// Where the arrays are that collectives move. The default: host memory, and no stream.
class SuiteMemory {
 public:
  virtual ~SuiteMemory() = default;
  virtual void* stream() { return nullptr; }
  // Zeros; valid until the next reset().
  virtual std::span<std::byte> take(std::size_t size_bytes);
  virtual void reset() { taken_.clear(); }
  virtual void write(std::span<std::byte> to, std::span<const std::byte> from);
  // After everything on the stream.
  virtual void read(std::span<std::byte> to, std::span<const std::byte> from);

 private:
  std::vector<std::unique_ptr<std::byte[]>> taken_;  // NOLINT(modernize-avoid-c-arrays)
};

struct SuiteOptions {
  std::vector<RankPlace> places;  // of all ranks
  SuiteMemory* memory = nullptr;
  std::uint64_t large_piece_bytes = 0;  // one more size, on the world
  bool device = false;                  // no all_to_all in place
};

std::vector<std::string> check_collectives(Communicator& comm, const SuiteOptions& options);

// Hosts "a", "b", ... with so many ranks each, ranks by host: {2, 1} is a, a, b.
std::vector<RankPlace> places_of(std::span<const int> ranks_of_hosts);

}  // namespace sluice::engine
