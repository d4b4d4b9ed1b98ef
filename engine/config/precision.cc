// The data type that a run computes in, and what "auto" becomes there.
#include "engine/config/derive.h"

namespace sluice::config {
namespace {

constexpr std::string_view kFp16 = "fp16.enabled";
constexpr std::string_view kBf16 = "bf16.enabled";

// The device's abilities that matter for choosing a type.
GpuKind gpu_of(Derivation& derivation) {
  if (derivation.config.run.device == Device::kCpu) return GpuKind::kNone;
  if (derivation.facts.gpu) return *derivation.facts.gpu;
  derivation.missing_facts.gpu = true;
  return GpuKind::kWithBf16;
}

std::string why_bf16(const Derivation& derivation, GpuKind gpu) {
  if (derivation.missing_facts.gpu) return "bf16, unless the run's GPU does not support it";
  return gpu == GpuKind::kNone ? "bf16: the CPU computes, and bf16 needs no loss scale"
                               : "bf16, which the GPU supports";
}

// "auto" for one or both types, as in Hugging Face's configurations: bf16 if the GPU supports it,
// else fp16; never a type that another key excludes.
void choose(Derivation& derivation) {
  Config& config = derivation.config;
  const bool leaves_fp16 = derivation.says_auto(kFp16);
  const bool leaves_bf16 = derivation.says_auto(kBf16);
  if (!leaves_fp16 && !leaves_bf16) return;
  std::string why;
  if (config.fp16.enabled || config.bf16.enabled) {
    why = config.fp16.enabled ? "fp16.enabled is true" : "bf16.enabled is true";
  } else if (!leaves_bf16) {
    config.fp16.enabled = true;
    why = "fp16, the only 16-bit type that is not off";
  } else if (const GpuKind gpu = gpu_of(derivation); gpu != GpuKind::kWithoutBf16) {
    config.bf16.enabled = true;
    why = why_bf16(derivation, gpu);
  } else if (leaves_fp16 || !derivation.given(kFp16)) {
    config.fp16.enabled = true;
    why = "fp16: the GPU does not support bf16";
  } else {
    why = "fp32: the GPU does not support bf16, and fp16.enabled is false";
  }
  if (leaves_fp16 || config.fp16.enabled) derivation.note(kFp16, why);
  if (leaves_bf16 || config.bf16.enabled) derivation.note(kBf16, why);
}

}  // namespace

void derive_precision(Derivation& derivation) {
  Config& config = derivation.config;
  choose(derivation);
  if (config.fp16.enabled && config.bf16.enabled) {
    const int fp16 = derivation.rank(kFp16);
    const int bf16 = derivation.rank(kBf16);
    if (fp16 == bf16) {
      return derivation.reject(
          "fp16.enabled and bf16.enabled are both true: set one of them to false");
    }
    const bool fp16_wins = fp16 > bf16;
    (fp16_wins ? config.bf16.enabled : config.fp16.enabled) = false;
    derivation.drop(fp16_wins ? kBf16 : kFp16, "a later source enables the other 16-bit type");
  }
  config.precision = config.fp16.enabled   ? Precision::kFp16
                     : config.bf16.enabled ? Precision::kBf16
                                           : Precision::kFp32;
  if (config.fp8.enabled && config.precision != Precision::kBf16)
    derivation.reject("fp8.enabled needs bf16.enabled: set it to true, or fp8.enabled to false");
}

}  // namespace sluice::config
