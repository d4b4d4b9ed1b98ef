#include "engine/model/ops/dropout.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>

#include "engine/model/counter_random.h"
#include "engine/model/ops/cuda_kernels.h"
#include "engine/model/ops/fused_kernels.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kPairsPerTask = 16384;

template <typename Scalar>
void drop(const Scalar* from, Scalar* to, std::int64_t elements, const DropoutMask& mask) {
  using Compute = at::opmath_type<Scalar>;
  const auto scale = static_cast<Compute>(mask.scale);
  at::parallel_for(0, (elements + 1) / 2, kPairsPerTask, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t pair = begin; pair < end; ++pair) {
      const std::uint64_t bits =
          counter_bits(mask.seed, mask.first_pair + static_cast<std::uint64_t>(pair));
      const std::int64_t even = 2 * pair;
      const bool keep_even = static_cast<std::uint32_t>(bits) >= mask.threshold;
      to[even] = keep_even ? static_cast<Scalar>(static_cast<Compute>(from[even]) * scale)
                           : static_cast<Scalar>(0);
      if (even + 1 == elements) break;
      const bool keep_odd = static_cast<std::uint32_t>(bits >> 32) >= mask.threshold;
      to[even + 1] = keep_odd ? static_cast<Scalar>(static_cast<Compute>(from[even + 1]) * scale)
                              : static_cast<Scalar>(0);
    }
  });
}

void drop_into(const at::Tensor& from, at::Tensor& to, const DropoutMask& mask) {
  if (from.is_cuda()) return cuda_dropout(from, to, mask);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, from.scalar_type(), "dropout", [&] {
    drop(from.const_data_ptr<scalar_t>(), to.mutable_data_ptr<scalar_t>(), from.numel(), mask);
  });
}

}  // namespace

DropoutMask dropout_mask(const Dropout& dropout, std::uint64_t first_position) {
  return {.seed = dropout.seed,
          .first_pair = (dropout.first_position + first_position) / 2,
          .threshold = static_cast<std::uint32_t>(
              std::min(std::llround(dropout.probability * 0x1p32), 0xFFFFFFFFLL)),
          .scale = 1 / (1 - dropout.probability)};
}

Dropout dropout_at(const PassContext& context, DropoutSite site, double probability) {
  if (!context.training || probability == 0) return {};
  std::uint64_t seed = context.run_seed;
  for (const std::int64_t part : {context.step, context.micro_batch, std::int64_t{context.unit},
                                  std::int64_t{context.rank}, static_cast<std::int64_t>(site)}) {
    seed = extend_seed(seed, static_cast<std::uint64_t>(part));
  }
  return {.probability = probability, .seed = seed};
}

Dropout numbered(const Dropout& dropout, int number) {
  return {.probability = dropout.probability,
          .seed = extend_seed(dropout.seed, static_cast<std::uint64_t>(number)),
          .first_position = dropout.first_position};
}

void drop_in_place(at::Tensor& tensor, const Dropout& dropout, std::uint64_t first_position) {
  if (!dropout.active()) return;
  TORCH_CHECK(tensor.is_contiguous() && first_position % 2 == 0 && dropout.first_position % 2 == 0,
              "dropout is drawn over whole pairs of contiguous elements");
  drop_into(tensor, tensor, dropout_mask(dropout, first_position));
}

at::Tensor with_dropout(const at::Tensor& tensor, const Dropout& dropout) {
  if (!dropout.active()) return tensor;
  TORCH_CHECK(tensor.is_contiguous() && dropout.first_position % 2 == 0,
              "dropout is drawn over whole pairs of contiguous elements");
  at::Tensor result = at::empty_like(tensor);
  drop_into(tensor, result, dropout_mask(dropout));
  return result;
}

void add_residual(at::Tensor& branch, const at::Tensor& residual, const Dropout& dropout) {
  if (cuda_fuses(branch) && cuda_fuses(residual)) {
    return fused_add_residual(branch, residual, dropout);
  }
  drop_in_place(branch, dropout);
  branch.add_(residual);
}

}  // namespace sluice::engine
