// SplitMix: seeded random numbers for the simulations. They are the same on every machine and
// standard library. A generator is cheap enough to create for each operation from (seed, operation
// number), so that one operation's outcome does not depend on how many came before it.
#pragma once

#include <cstdint>

namespace sluice::aio {

class SplitMix {
 public:
  explicit SplitMix(std::uint64_t seed) : state_(seed) {}
  SplitMix(std::uint64_t seed, std::uint64_t stream) : state_(seed) { state_ = next() ^ stream; }

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }
  // In [0, bound), for bound > 0. The bias of the remainder does not matter to a simulation.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  // In [0, 1).
  double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  bool chance(double probability) { return unit() < probability; }

 private:
  std::uint64_t state_;
};

}  // namespace sluice::aio
