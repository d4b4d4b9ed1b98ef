// RankReduction: sums a unit's gradient over all ranks and leaves each rank its shard of the sum
// ("ZeRO", Rajbhandari et al., SC 2020, stage 2). Additions follow the run's order
// (offload/sum_order.h). Pieces travel by all-to-all and are added here, because a transport would
// add them in an order of its own.
//
// With several hosts the ranks of a host add up their sums first. So the network carries a unit
// once for each root of a host's lanes, and not once per rank.
//
// Memory:  fp32, SumOrder::received_pieces() pieces of the largest unit.
// Threads: the training thread; all ranks reduce the same units in the same order.
// Errors:  those of Communicator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "aio/result.h"
#include "engine/comm/communicator.h"
#include "engine/model/model_layout.h"
#include "offload/adamw/square_sum.h"
#include "offload/sum_codec.h"
#include "offload/sum_order.h"
#include "offload/unit_shards.h"

namespace sluice::engine {

// A run's ranks and their link.
struct RankLink {
  offload::RankPart part;
  Communicator* link = &single_process();
};

// The exchanges of a unit's sums in any memory, and what is added when. Rank r's piece is the r-th
// of the gathered unit; a part of every piece can be reduced at a time.
class SumExchange {
 public:
  SumExchange(const RankLink& ranks, const offload::SumOrder& order);

  // Rows of equal length, at equal distances, all in elements.
  struct Rows {
    float* first = nullptr;
    std::uint64_t rows = 1;
    std::uint64_t elements = 0;
    std::uint64_t stride = 0;
  };
  // In the memory of the sums.
  struct Kernels {
    // sum = a + b; `sum` may be `a`.
    std::function<void(const Rows& sum, const Rows& a, const Rows& b)> add;
    // Row by row, as contiguous bytes; not called for fp32.
    std::function<Status(offload::SumCodec, const Rows& from, std::byte* to)> encode;
    std::function<Status(offload::SumCodec, const std::byte* from, const Rows& to)> decode;
  };
  struct Part {
    std::span<float* const> roots;  // this rank's sums of the gathered unit; only read
    std::uint64_t piece = 0;        // elements of a rank's piece
    std::uint64_t first = 0;        // the part of each piece, in whole blocks of 128
    std::uint64_t count = 0;
    float* received = nullptr;  // exchange_bytes(count)
    float* sum = nullptr;       // gets this rank's part of the sum; it may be `received`
    void* stream = nullptr;     // CollectiveOptions::stream
  };
  Status reduce(const Part& part, const Kernels& kernels) const;
  // SumOrder::exchange_bytes()
  std::uint64_t exchange_bytes(std::uint64_t count) const;

 private:
  Status exchange(const Rows& sent, float* received, const Part& part, const Kernels& kernels,
                  CollectiveOptions options) const;

  const RankLink ranks_;
  const offload::HeldSums sums_;
  const std::vector<offload::SumOrder::Hop> hops_;
};

class RankReduction {
 public:
  // For units of at most `most_elements`.
  RankReduction(const RankLink& ranks, const offload::SumOrder& order, std::uint64_t most_elements);

  // `roots`: this rank's sums, SumOrder::roots() of them. Each has gathered_elements(): a whole
  // unit and its padding. Returns this rank's shard of the sum over all ranks, valid until the next
  // call.
  Result<std::span<float>> reduce(std::span<float* const> roots, std::uint64_t elements);

 private:
  const SumExchange exchange_;
  const std::uint64_t world_;
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
