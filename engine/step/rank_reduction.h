// RankReduction: what all ranks have added up of a unit's gradient, each for its own micro-batches,
// reduced to the shard of each ("ZeRO", Rajbhandari et al., SC 2020, stage 2), in the order of
// additions of a run (offload/sum_order.h). Pieces travel by all-to-all and are added here, never
// by a transport, whose order is its own.
//
// Memory:  a gathered unit's fp32 numbers, of the largest unit, for each exchange.
// Threads: the one that trains; all ranks reduce the same units in the same order.
// Errors:  as from Communicator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "aio/result.h"
#include "engine/comm/communicator.h"
#include "engine/model/model_layout.h"
#include "offload/adamw/square_sum.h"
#include "offload/sum_order.h"
#include "offload/unit_shards.h"

namespace sluice::engine {

// A run's ranks: a link of one, too. Null where there is nothing to exchange.
struct RankLink {
  offload::RankPart part;
  Communicator* link = nullptr;

  bool is_alone() const { return part.world == 1; }
};

class RankReduction {
 public:
  // For units of up to `most_elements`.
  RankReduction(const RankLink& ranks, const offload::SumOrder& order, std::uint64_t most_elements);

  // `roots`: this rank's, SumOrder::roots() of them, each of a whole unit, with the padding behind
  // it: gathered_elements() of them. The result is the sum of all ranks' in this one's shard; it
  // stays until the next call.
  Result<std::span<float>> reduce(std::span<const float* const> roots, std::uint64_t elements);

 private:
  const RankLink ranks_;
  const offload::SumOrder order_;
  const std::vector<offload::SumOrder::Addition> additions_;
  std::vector<float> received_;
};

// By unit: each rank's sums are of its shards; then all have those of whole units.
Status gather_square_sums(const RankLink& ranks, const ModelLayout& model,
                          std::span<offload::SquareSum* const> sums);

// `own`: of each micro-batch of this rank. Then of all micro-batches of the step, in their order.
Result<std::vector<double>> all_of_step(const RankLink& ranks, const offload::SumOrder& order,
                                        const std::vector<double>& own);

}  // namespace sluice::engine
