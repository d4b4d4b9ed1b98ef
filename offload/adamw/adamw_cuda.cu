#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "offload/adamw/adamw_cuda.h"

namespace sluice::offload {
namespace {

constexpr int kThreads = 256;
constexpr std::uint64_t kMaxBlocks = 1 << 16;
// Eight elements are 16 bytes in the 16-bit arrays, and twice 16 bytes in the others.
constexpr int kGroup = 8;

__device__ float canonical_nan(float x) { return x != x ? __uint_as_float(0x7FC00000) : x; }

__device__ float as_stored(float x) { return fabsf(x) < 1.17549435e-38F ? 0.0F : canonical_nan(x); }

// A NaN is neither, and stays.
__device__ float limited(float x, float limit) {
  return x > limit ? limit : x < -limit ? -limit : x;
}

template <GradType kGrad>
struct GradElement {
  using Type = std::uint16_t;
};
template <>
struct GradElement<GradType::kFp32> {
  using Type = float;
};

template <GradType kGrad>
__device__ float grad_value(typename GradElement<kGrad>::Type grad) {
  if constexpr (kGrad == GradType::kFp32) return grad;
  if constexpr (kGrad == GradType::kBf16) return __uint_as_float(std::uint32_t{grad} << 16);
  if constexpr (kGrad == GradType::kFp16) return __half2float(__ushort_as_half(grad));
}

template <ElementType kMoments>
struct MomentElement {
  using Type = float;
};
template <>
struct MomentElement<ElementType::kBf16> {
  using Type = std::uint16_t;
};

__device__ float moment_value(float moment) { return moment; }
__device__ float moment_value(std::uint16_t moment) {
  return __uint_as_float(std::uint32_t{moment} << 16);
}

// The next two functions are those of moment_rounding.h.
__device__ std::uint32_t moment_bits(const MomentKeys& keys, std::uint64_t element) {
  std::uint32_t x = static_cast<std::uint32_t>(element) + keys.first;
  x = (x ^ (x >> 16)) * 0x7FEB352DU;
  x = ((x ^ (x >> 15)) + keys.second) * 0x846CA68BU;
  return x ^ (x >> 16);
}

__device__ std::uint16_t round_moment(float stored, std::uint32_t random) {
  const std::uint32_t bits = __float_as_uint(stored);
  const bool keeps = (bits & 0x7FFFFFFF) >= 0x7F7F0000;
  return static_cast<std::uint16_t>((bits + (keeps ? 0 : random)) >> 16);
}

// One element's values in a thread's registers. The master is `p` in all forms.
struct Element {
  float p, m, v;
  std::uint16_t param16, lo;
};

template <bool kL2>
__device__ void update(const AdamwScalars& s, float grad, Element& e) {
  float g = limited(__fmul_rn(grad, s.grad_scale), s.grad_limit);
  if constexpr (kL2) g = __fmaf_rn(s.l2, e.p, g);
  e.m = as_stored(__fmaf_rn(s.one_minus_beta1, __fsub_rn(g, e.m), e.m));
  e.v = as_stored(__fmaf_rn(s.one_minus_beta2, __fmaf_rn(g, g, -e.v), e.v));
  const float d = __fmaf_rn(__fsqrt_rn(e.v), s.inv_sqrt_c2, s.eps);
  const float step = __fmul_rn(s.step_size, __fdiv_rn(e.m, d));
  e.p = canonical_nan(__fsub_rn(e.p, __fmaf_rn(s.decay, e.p, step)));
}

__device__ float join(std::uint16_t hi, std::uint16_t lo) {
  return __uint_as_float((std::uint32_t{hi} - (lo >> 15)) << 16 | lo);
}

template <ParamForm kForm>
__device__ void make_halves(Element& e) {
  const std::uint32_t bits = __float_as_uint(e.p);
  e.lo = static_cast<std::uint16_t>(bits);
  e.param16 = kForm == ParamForm::kFp32AndFp16
                  ? __half_as_ushort(__float2half_rn(e.p))
                  : static_cast<std::uint16_t>((bits >> 16) + ((bits >> 15) & 1));
  // The conversion alone gives a different NaN.
  if (kForm == ParamForm::kFp32AndFp16 && e.p != e.p) e.param16 = 0x7E00;
}

// Element i's moments, to be stored.
__device__ void set_moments(const AdamwArrays&, std::uint64_t, const Element& e, float& m,
                            float& v) {
  m = e.m;
  v = e.v;
}
__device__ void set_moments(const AdamwArrays& a, std::uint64_t i, const Element& e,
                            std::uint16_t& m, std::uint16_t& v) {
  const std::uint32_t random = moment_bits(a.moment_keys, a.first_element + i);
  m = round_moment(e.m, random & 0xFFFF);
  v = round_moment(e.v, random >> 16);
}

template <ElementType kMoments>
__device__ auto* m_of(const AdamwArrays& a) {
  if constexpr (kMoments == ElementType::kFp32)
    return a.m;
  else
    return a.m16;
}
template <ElementType kMoments>
__device__ auto* v_of(const AdamwArrays& a) {
  if constexpr (kMoments == ElementType::kFp32)
    return a.v;
  else
    return a.v16;
}

// kGroup values from or to memory, in 16-byte pieces.
template <typename T>
struct alignas(16) Group {
  T values[kGroup];
};
template <typename T>
__device__ Group<T> load_group(const T* from) {
  Group<T> group;
  const auto* source = reinterpret_cast<const uint4*>(from);
  auto* target = reinterpret_cast<uint4*>(group.values);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(group) / sizeof(uint4)); ++i) target[i] = source[i];
  return group;
}
template <typename T>
__device__ void store_group(T* to, const Group<T>& group) {
  const auto* source = reinterpret_cast<const uint4*>(group.values);
  auto* target = reinterpret_cast<uint4*>(to);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(group) / sizeof(uint4)); ++i) target[i] = source[i];
}

template <GradType kGrad, ParamForm kForm, ElementType kMoments, bool kL2>
__device__ void step_one(const AdamwScalars& s, const AdamwArrays& a, std::uint64_t i) {
  constexpr bool kSplit = kForm == ParamForm::kSplit;
  Element e;
  e.p = kSplit ? join(a.param16[i], a.lo[i]) : a.master[i];
  auto* const m = m_of<kMoments>(a);
  auto* const v = v_of<kMoments>(a);
  e.m = moment_value(m[i]);
  e.v = moment_value(v[i]);
  const auto* grad = static_cast<const typename GradElement<kGrad>::Type*>(a.grad);
  update<kL2>(s, grad_value<kGrad>(grad[i]), e);
  make_halves<kForm>(e);
  if constexpr (kForm != ParamForm::kFp32) a.param16[i] = e.param16;
  if constexpr (kSplit) a.lo[i] = e.lo;
  if constexpr (!kSplit) a.master[i] = e.p;
  set_moments(a, i, e, m[i], v[i]);
}

template <GradType kGrad, ParamForm kForm, ElementType kMoments, bool kL2>
__device__ void step_group(const AdamwScalars& s, const AdamwArrays& a, std::uint64_t i) {
  constexpr bool kSplit = kForm == ParamForm::kSplit;
  using Grad = typename GradElement<kGrad>::Type;
  const Group<Grad> grad = load_group(static_cast<const Grad*>(a.grad) + i);
  using Moment = typename MomentElement<kMoments>::Type;
  Group<float> p;
  Group<Moment> m = load_group(m_of<kMoments>(a) + i), v = load_group(v_of<kMoments>(a) + i);
  Group<std::uint16_t> param16, lo;
  if constexpr (kSplit) {
    param16 = load_group(a.param16 + i);
    lo = load_group(a.lo + i);
  } else {
    p = load_group(a.master + i);
  }
#pragma unroll
  for (int j = 0; j < kGroup; ++j) {
    Element e{kSplit ? join(param16.values[j], lo.values[j]) : p.values[j],
              moment_value(m.values[j]), moment_value(v.values[j]), 0, 0};
    update<kL2>(s, grad_value<kGrad>(grad.values[j]), e);
    make_halves<kForm>(e);
    p.values[j] = e.p;
    set_moments(a, i + j, e, m.values[j], v.values[j]);
    param16.values[j] = e.param16;
    lo.values[j] = e.lo;
  }
  if constexpr (kForm != ParamForm::kFp32) store_group(a.param16 + i, param16);
  if constexpr (kSplit) store_group(a.lo + i, lo);
  if constexpr (!kSplit) store_group(a.master + i, p);
  store_group(m_of<kMoments>(a) + i, m);
  store_group(v_of<kMoments>(a) + i, v);
}

// Whole groups first, up to `grouped` elements; then the rest one by one.
template <GradType kGrad, ParamForm kForm, ElementType kMoments, bool kL2>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(AdamwScalars s, AdamwArrays a, std::uint64_t grouped, std::uint64_t elements) {
  const std::uint64_t thread = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::uint64_t threads = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = thread * kGroup; i < grouped; i += threads * kGroup)
    step_group<kGrad, kForm, kMoments, kL2>(s, a, i);
  for (std::uint64_t i = grouped + thread; i < elements; i += threads)
    step_one<kGrad, kForm, kMoments, kL2>(s, a, i);
}

bool aligned(const void* array) { return reinterpret_cast<std::uintptr_t>(array) % 16 == 0; }

bool in_groups(const AdamwArrays& a) {
  const bool split = a.param_form == ParamForm::kSplit;
  const bool wide = a.moment_type == ElementType::kFp32;
  return aligned(a.grad) &&
         (wide ? aligned(a.m) && aligned(a.v) : aligned(a.m16) && aligned(a.v16)) &&
         aligned(split ? a.lo : nullptr) && aligned(split ? nullptr : a.master) &&
         aligned(a.param_form == ParamForm::kFp32 ? nullptr : a.param16);
}

template <GradType kGrad, ParamForm kForm, ElementType kMoments>
void launch(const AdamwScalars& s, const AdamwArrays& a, std::uint64_t elements,
            cudaStream_t stream) {
  const std::uint64_t grouped = in_groups(a) ? elements / kGroup * kGroup : 0;
  const std::uint64_t items = grouped > 0 ? grouped / kGroup : elements;
  const auto blocks =
      static_cast<unsigned>(std::min(kMaxBlocks, (items + kThreads - 1) / kThreads));
  if (s.use_l2) {
    adamw_kernel<kGrad, kForm, kMoments, true>
        <<<blocks, kThreads, 0, stream>>>(s, a, grouped, elements);
  } else {
    adamw_kernel<kGrad, kForm, kMoments, false>
        <<<blocks, kThreads, 0, stream>>>(s, a, grouped, elements);
  }
}

template <GradType kGrad, ParamForm kForm>
void choose_moments(const AdamwScalars& s, const AdamwArrays& a, std::uint64_t elements,
                    cudaStream_t stream) {
  if (a.moment_type == ElementType::kFp32)
    launch<kGrad, kForm, ElementType::kFp32>(s, a, elements, stream);
  else
    launch<kGrad, kForm, ElementType::kBf16>(s, a, elements, stream);
}

template <GradType kGrad>
void choose_form(const AdamwScalars& s, const AdamwArrays& a, std::uint64_t elements,
                 cudaStream_t stream) {
  switch (a.param_form) {
    case ParamForm::kSplit:
      return choose_moments<kGrad, ParamForm::kSplit>(s, a, elements, stream);
    case ParamForm::kFp32:
      return choose_moments<kGrad, ParamForm::kFp32>(s, a, elements, stream);
    case ParamForm::kFp32AndFp16:
      return choose_moments<kGrad, ParamForm::kFp32AndFp16>(s, a, elements, stream);
  }
}

}  // namespace

Status adamw_step_cuda(const AdamwScalars& scalars, const AdamwArrays& arrays,
                       std::uint64_t elements, void* stream) {
  if (elements == 0) return {};
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  switch (arrays.grad_type) {
    case GradType::kFp32:
      choose_form<GradType::kFp32>(scalars, arrays, elements, cuda_stream);
      break;
    case GradType::kBf16:
      choose_form<GradType::kBf16>(scalars, arrays, elements, cuda_stream);
      break;
    case GradType::kFp16:
      choose_form<GradType::kFp16>(scalars, arrays, elements, cuda_stream);
      break;
  }
  const cudaError_t launched = cudaGetLastError();
  if (launched == cudaSuccess) return {};
  return Error(ErrorCode::kInternal,
               std::string("launching the AdamW kernel failed: ") + cudaGetErrorString(launched));
}

}  // namespace sluice::offload
