// Isa: the instruction set that the CPU kernels use. All give the same bits, at different speeds.
//
// One binary runs on any x86-64-v2 machine: the choice is made at run time.
#pragma once

#include <cstdint>
#include <string_view>

#include "aio/result.h"

namespace sluice::offload {

enum class Isa : std::uint8_t {
  kScalar,  // x86-64-v2 only: the oracle
  kAvx2,    // AVX2, FMA, F16C
  kAvx512,  // AVX-512 F, BW, DQ, VL
};
std::string_view to_string(Isa isa);

// The first feature that `isa` needs and that this CPU or its operating system does not provide
// ("AVX-512BW"); empty if nothing is missing.
std::string_view missing_for(Isa isa);

Isa best_isa();

// "auto" (the best), "scalar", "avx2" or "avx512". kInvalidArgument: another name; kUnsupported:
// this CPU cannot run it; the error names what is missing.
Result<Isa> choose_isa(std::string_view name);

}  // namespace sluice::offload
