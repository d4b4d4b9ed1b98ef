#include "offload/sum_order.h"

#include <algorithm>
#include <bit>

#include "aio/check.h"

namespace sluice::offload {
namespace {

int ones(std::int64_t number) { return std::popcount(static_cast<std::uint64_t>(number)); }

}  // namespace

SumOrder::SumOrder(const Parts& parts) : parts_(parts) {
  SLUICE_CHECK(divides(parts), "lanes and rounds divide a step's micro-batches");
  of_a_lane_ = parts.micro_batches / (parts.lanes * parts.rounds);
}

bool SumOrder::divides(const Parts& parts) {
  return parts.lanes > 0 && parts.rounds > 0 && parts.micro_batches >= parts.lanes &&
         parts.micro_batches / parts.lanes >= parts.rounds &&
         parts.micro_batches % (parts.lanes * parts.rounds) == 0;
}

int SumOrder::level(std::int64_t micro_batch) const {
  const std::int64_t lane = micro_batch / of_a_lane_;
  return below(lane / parts_.lanes) + ones(lane % parts_.lanes);
}

int SumOrder::folds_behind(std::int64_t micro_batch) const {
  return level(micro_batch) + 1 - open_sums(micro_batch + 1);
}

int SumOrder::open_sums(std::int64_t micro_batches) const {
  const std::int64_t lane = micro_batches / of_a_lane_;
  const std::int64_t round = lane / parts_.lanes;
  const int complete = below(round) + ones(lane % parts_.lanes);
  return complete + (micro_batches % of_a_lane_ == 0 ? 0 : 1);
}

HeldSums SumOrder::held(const Waves& waves) const {
  HeldSums held;
  for (std::int64_t lane = 0; lane < lanes(); ++lane)
    held.levels = std::max(held.levels, level(lane * of_a_lane_) + 1);
  for (int wave = 1; wave < waves.count(); ++wave)
    held.kept = std::max(held.kept, open_sums(waves.first(wave)));
  return held;
}

}  // namespace sluice::offload
