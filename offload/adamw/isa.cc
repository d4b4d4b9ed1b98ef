#include "offload/adamw/isa.h"

#include <cpuid.h>

#include <array>
#include <string>

namespace sluice::offload {
namespace {

// Not every compiler's __builtin_cpu_supports recognises F16C. F16C uses AVX registers, so an
// operating system that saves those supports it.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

constexpr std::array kAll = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512};

}  // namespace

std::string_view to_string(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

// __builtin_cpu_supports also checks whether the operating system saves the wide registers.
std::string_view missing_for(Isa isa) {
  __builtin_cpu_init();
  switch (isa) {
    case Isa::kScalar:
      return "";
    case Isa::kAvx512:
      if (!__builtin_cpu_supports("avx512f")) return "AVX-512F";
      if (!__builtin_cpu_supports("avx512bw")) return "AVX-512BW";
      if (!__builtin_cpu_supports("avx512dq")) return "AVX-512DQ";
      if (!__builtin_cpu_supports("avx512vl")) return "AVX-512VL";
      [[fallthrough]];
    case Isa::kAvx2:
      if (!__builtin_cpu_supports("avx2")) return "AVX2";
      if (!__builtin_cpu_supports("fma")) return "FMA";
      if (!has_f16c()) return "F16C";
      return "";
  }
  return "everything";
}

Isa best_isa() {
  Isa best = Isa::kScalar;
  for (const Isa isa : kAll)
    if (missing_for(isa).empty()) best = isa;
  return best;
}

Result<Isa> choose_isa(std::string_view name) {
  if (name == "auto") return best_isa();
  for (const Isa isa : kAll) {
    if (name != to_string(isa)) continue;
    const std::string_view missing = missing_for(isa);
    if (missing.empty()) return isa;
    return Error(ErrorCode::kUnsupported,
                 "instruction set \"" + std::string(name) + "\" needs " + std::string(missing) +
                     ", which this CPU or operating system does not support; the best here is \"" +
                     std::string(to_string(best_isa())) + "\"");
  }
  return Error(ErrorCode::kInvalidArgument, "unknown instruction set \"" + std::string(name) +
                                                "\"; use auto, scalar, avx2 or avx512");
}

}  // namespace sluice::offload
