#include "offload/adamw/grad_stats.h"

#include <algorithm>
#include <array>
#include <functional>

#include "aio/check.h"
#include "aio/units.h"
#include "offload/adamw/fp_environment.h"
#include "offload/adamw/grad_stats_kernels.h"

namespace sluice::offload {
namespace {

constexpr std::size_t kLeavesPerBlock = kSumBlockElements / kLeafElements;

LeafSumsKernel* sums_kernel_for(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return leaf_sums_avx512;
    case Isa::kAvx2:
      return leaf_sums_avx2;
    case Isa::kScalar:
      break;
  }
  return leaf_sums_scalar;
}

class Pass {
 public:
  Pass(LeafSumsKernel* kernel, const GradCast& cast, std::uint64_t first)
      : kernel_(kernel), cast_(cast), first_(first) {}

  // Casts and adds elements from sum.end() to `end`, all in one block.
  void part_of_block(std::uint64_t end, SquareSum& sum) const {
    const DefaultFpEnvironment fp_environment;
    one_by_one(std::min(end, align_up(sum.end(), kLeafElements)), sum);
    std::array<double, kLeavesPerBlock> sums;
    const std::size_t leaves = (end - sum.end()) / kLeafElements;
    if (leaves > 0) run_kernel(sum.end(), leaves, sums.data());
    for (std::size_t i = 0; i < leaves; ++i) sum.append_node(kLeafLevel, sums[i]);
    one_by_one(end, sum);
  }

  double whole_block(std::uint64_t begin) const {
    std::array<double, kLeavesPerBlock> sums;
    run_kernel(begin, kLeavesPerBlock, sums.data());
    return sum_tree(sums.data(), kSumBlockLevel - kLeafLevel);
  }

 private:
  std::uint16_t* out_at(std::uint64_t element) const {
    return cast_.to == GradType::kFp32 ? nullptr : cast_.out + (element - first_);
  }
  void run_kernel(std::uint64_t begin, std::size_t leaves, double* sums) const {
    kernel_(cast_.grad + (begin - first_), cast_.to, out_at(begin), leaves, sums);
  }
  void one_by_one(std::uint64_t end, SquareSum& sum) const {
    while (sum.end() < end) {
      const std::uint64_t at = sum.end();
      sum.append_node(0, cast_and_square(cast_.grad + (at - first_), cast_.to, out_at(at)));
    }
  }

  LeafSumsKernel* const kernel_;
  const GradCast cast_;
  const std::uint64_t first_;
};

}  // namespace

void cast_and_sum(aio::Executor& executor, Isa isa, const GradCast& cast, SquareSum& sum) {
  if (cast.elements == 0) return;
  SLUICE_CHECK(cast.grad != nullptr, "a gradient");
  SLUICE_CHECK(cast.to == GradType::kFp32 || cast.out != nullptr, "a place for the cast gradient");
  const std::uint64_t first = sum.end();
  const std::uint64_t end = first + cast.elements;
  const Pass pass(sums_kernel_for(isa), cast, first);

  const std::uint64_t blocks_begin = align_up(first, kSumBlockElements);
  if (first < blocks_begin) pass.part_of_block(std::min(end, blocks_begin), sum);
  if (sum.end() == end) return;

  const std::uint64_t blocks = (end - blocks_begin) / kSumBlockElements;
  const std::span<double> block_sums = sum.append_blocks(blocks);
  const auto pieces =
      static_cast<int>(std::min<std::uint64_t>(blocks, static_cast<unsigned>(executor.threads())));
  const auto work = [&](int piece) {
    const DefaultFpEnvironment fp_environment;
    const auto at = static_cast<std::uint64_t>(piece);
    const auto of = static_cast<std::uint64_t>(pieces);
    for (std::uint64_t b = blocks * at / of; b < blocks * (at + 1) / of; ++b)
      block_sums[b] = pass.whole_block(blocks_begin + b * kSumBlockElements);
  };
  if (pieces == 1) work(0);
  if (pieces > 1) executor.run(pieces, std::cref(work));
  if (sum.end() < end) pass.part_of_block(end, sum);
}

}  // namespace sluice::offload
