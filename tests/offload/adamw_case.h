// One AdamW problem in memory: the arrays for every gradient type and parameter form, filled from a
// seed, and comparable bit for bit.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ostream>
#include <string>
#include <vector>

#include "offload/adamw/adamw.h"
#include "offload/adamw/half.h"
#include "offload/adamw/split_master.h"
#include "tests/offload/hostile_numbers.h"

namespace sluice::offload {

struct AdamwKind {
  GradType grad;
  ParamForm form;
  bool l2;
  ElementType moments = ElementType::kFp32;
};

inline std::vector<AdamwKind> all_adamw_kinds() {
  std::vector<AdamwKind> kinds;
  for (const GradType grad : {GradType::kFp32, GradType::kBf16, GradType::kFp16})
    for (const ParamForm form : {ParamForm::kSplit, ParamForm::kFp32, ParamForm::kFp32AndFp16})
      for (const bool l2 : {false, true})
        for (const ElementType moments : {ElementType::kFp32, ElementType::kBf16})
          kinds.push_back({grad, form, l2, moments});
  return kinds;
}

inline std::string name_of(const AdamwKind& kind) {
  static constexpr const char* kGrads[] = {"Fp32", "Bf16", "Fp16"};
  static constexpr const char* kForms[] = {"Split", "Fp32", "Fp32AndFp16"};
  return std::string("Grad") + kGrads[static_cast<int>(kind.grad)] + "Master" +
         kForms[static_cast<int>(kind.form)] + (kind.l2 ? "L2" : "Decoupled") +
         (kind.moments == ElementType::kBf16 ? "Bf16Moments" : "");
}
inline std::ostream& operator<<(std::ostream& out, const AdamwKind& kind) {
  return out << name_of(kind);
}

struct AdamwCase {
  std::vector<float> grad32, master, m, v;
  std::vector<std::uint16_t> grad16, param16, lo, m16, v16;

  explicit AdamwCase(std::size_t elements)
      : grad32(elements),
        master(elements),
        m(elements),
        v(elements),
        grad16(elements),
        param16(elements),
        lo(elements),
        m16(elements),
        v16(elements) {}

  void fill(std::uint64_t seed) {
    HostileNumbers numbers(seed);
    for (std::size_t i = 0; i < m.size(); ++i) {
      grad32[i] = numbers.hostile();
      grad16[i] = numbers.hostile_half();
      master[i] = numbers.hostile();
      const SplitMaster halves = split_master(master[i]);
      // Some halves that no split produces: joining them is still well defined.
      param16[i] = numbers.bits() % 16 == 0 ? numbers.hostile_half() : halves.hi;
      lo[i] = halves.lo;
      m[i] = numbers.hostile();
      v[i] = numbers.hostile();
      if (numbers.bits() % 16 != 0)
        v[i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(v[i]) & 0x7FFFFFFF);
      // Includes denormals and NaNs, which no step stores.
      m16[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(m[i]) >> 16);
      v16[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(v[i]) >> 16);
    }
  }

  // The elements' indices in their unit cross 2^32.
  static constexpr std::uint64_t kFirstElement = (std::uint64_t{1} << 32) - 77;

  AdamwArrays arrays(const AdamwKind& kind, std::size_t offset = 0) {
    return {.grad_type = kind.grad,
            .param_form = kind.form,
            .moment_type = kind.moments,
            .grad = kind.grad == GradType::kFp32 ? static_cast<const void*>(grad32.data() + offset)
                                                 : grad16.data() + offset,
            .master = master.data() + offset,
            .param16 = param16.data() + offset,
            .lo = lo.data() + offset,
            .m = m.data() + offset,
            .v = v.data() + offset,
            .m16 = m16.data() + offset,
            .v16 = v16.data() + offset,
            .moment_keys = {.first = 0x9A3B51C7, .second = 0x48F0D2E6},
            .first_element = kFirstElement + offset};
  }

  // The first element in which the two differ, as text; empty if they are equal.
  std::string difference(const AdamwCase& other) const {
    return first_difference("master", master, other.master) +
           first_difference("param16", param16, other.param16) +
           first_difference("lo", lo, other.lo) + first_difference("m", m, other.m) +
           first_difference("v", v, other.v) + first_difference("m16", m16, other.m16) +
           first_difference("v16", v16, other.v16);
  }

 private:
  template <typename T>
  static std::string first_difference(const char* name, const std::vector<T>& a,
                                      const std::vector<T>& b) {
    if (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0) return "";
    std::size_t i = 0;
    while (hex(a[i]) == hex(b[i])) ++i;
    return std::string(name) + "[" + std::to_string(i) + "] " + hex(a[i]) + " against " +
           hex(b[i]) + "; ";
  }
  template <typename T>
  static std::string hex(T value) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    char text[16];
    std::snprintf(text, sizeof text, "0x%08X", bits);
    return text;
  }
};

// Settings that reach every scalar: plain, clipped and scaled, without bias correction or eps,
// clipped by value.
constexpr int kAdamwSettings = 4;
inline AdamwScalars adamw_settings(int which, bool l2) {
  AdamwOptions options{.learning_rate = 3e-4, .weight_decay = 0.1, .adam_w_mode = !l2, .step = 3};
  if (which % kAdamwSettings == 1) {
    options.loss_scale = 65536;
    options.grad_norm = 7.5;
    options.clip_norm = 1;
    options.step = 100000;
  } else if (which % kAdamwSettings == 3) {
    options.loss_scale = 4;
    options.clip_value = 0x1p-12;  // below many of HostileNumbers' ordinary numbers
  } else if (which % kAdamwSettings == 2) {
    options.eps = 0;
    options.bias_correction = false;
    options.beta1 = 0;
    options.beta2 = 0.95;
  }
  return make_adamw_scalars(options).value();
}

}  // namespace sluice::offload
