// RankReduction: sums a unit's gradient over all ranks and leaves each rank its shard of the sum
// ("ZeRO", Rajbhandari et al., SC 2020, stage 2). Additions follow the run's order
// (offload/sum_order.h). Pieces travel by all-to-all and are added here, because a transport would
// add them in an order of its own.
//
// Memory:  for each exchange, the fp32 values of the largest unit, gathered.
// Threads: the training thread; all ranks reduce the same units in the same order.
// Errors:  those of Communicator.
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

// A run's ranks and their link.
struct RankLink {
  offload::RankPart part;
  Communicator* link = &single_process();
};

class RankReduction {
 public:
  // For units of at most `most_elements`.
  RankReduction(const RankLink& ranks, const offload::SumOrder& order, std::uint64_t most_elements);

  // `roots`: this rank's sums, SumOrder::roots() of them. Each has gathered_elements(): a whole
  // unit and its padding. Returns this rank's shard of the sum over all ranks, valid until the next
  // call.
  Result<std::span<float>> reduce(std::span<const float* const> roots, std::uint64_t elements);

 private:
  const RankLink ranks_;
  const offload::SumOrder order_;
  const std::vector<offload::SumOrder::Addition> additions_;
  std::vector<float> received_;
};

// `sums`: by unit. On entry each rank has the sums of its shards; on return all have the sums of
// whole units.
Status gather_square_sums(const RankLink& ranks, const ModelLayout& model,
                          std::span<offload::SquareSum* const> sums);

// `own`: one value for each micro-batch of this rank. Returns the values of all micro-batches of
// the step, in order.
Result<std::vector<double>> all_of_step(const RankLink& ranks, const offload::SumOrder& order,
                                        const std::vector<double>& own);

}  // namespace sluice::engine
