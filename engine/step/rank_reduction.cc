#include "engine/step/rank_reduction.h"

#include <algorithm>

#include "aio/check.h"
#include "offload/adamw/sum_nodes.h"

namespace sluice::engine {

namespace {

using Rows = SumExchange::Rows;

void add_rows(const Rows& sum, const Rows& a, const Rows& b) {
  for (std::uint64_t row = 0; row < sum.rows; ++row) {
    float* const to = sum.first + row * sum.stride;
    const float* const left = a.first + row * a.stride;
    const float* const right = b.first + row * b.stride;
    for (std::uint64_t i = 0; i < sum.elements; ++i) to[i] = left[i] + right[i];
  }
}

}  // namespace

SumExchange::SumExchange(const RankLink& ranks, const offload::SumOrder& order)
    : ranks_(ranks), hops_(order.hops()) {
  const bool by_host = ranks.part.hosts > 1;
  SLUICE_CHECK(!by_host || ranks.link->topology().part(ranks.part.rank) == ranks.part,
               "hosts of neighbouring ranks");
}

std::uint64_t SumExchange::received_pieces() const {
  std::uint64_t pieces = 0;
  std::uint64_t batches = static_cast<std::uint64_t>(ranks_.part.hosts);  // of the first hop
  for (const offload::SumOrder::Hop& hop : hops_) {
    pieces += hop.sent.size() * static_cast<std::uint64_t>(hop.members) * batches;
    batches = 1;
  }
  return pieces;
}

// In the first hop of two, a rank gets its host's sums of its own piece and of the pieces of its
// peers, a batch for each host. Sum n then has a row for each host:
//
//   exchange -> host whose piece it is -> member of this host -> elements
Status SumExchange::exchange_in_first_hop(const Part& part) const {
  const offload::SumOrder::Hop& hop = hops_.front();
  const auto members = static_cast<std::uint64_t>(hop.members);
  const auto batches = static_cast<std::uint64_t>(ranks_.part.hosts);
  const std::uint64_t pieces = members * batches;
  for (std::size_t exchange = 0; exchange < hop.sent.size(); ++exchange) {
    const float* const root = part.roots[static_cast<std::size_t>(hop.sent[exchange])];
    SLUICE_RETURN_IF_ERROR(ranks_.link->all_to_all(
        std::as_bytes(std::span(root + part.first, (pieces - 1) * part.piece + part.count)),
        std::as_writable_bytes(
            std::span(part.received + exchange * pieces * part.count, pieces * part.count)),
        {.group = batches > 1 ? ProcessGroup::kNode : ProcessGroup::kWorld,
         .stream = part.stream,
         .sent_stride_bytes = part.piece * sizeof(float),
         .batches = batches}));
  }
  return {};
}

Status SumExchange::reduce(const Part& part, const Add& add) const {
  SLUICE_RETURN_IF_ERROR(exchange_in_first_hop(part));
  const auto rows = static_cast<std::uint64_t>(ranks_.part.hosts);
  const auto members = static_cast<std::uint64_t>(hops_.front().members);
  const auto of_first_hop = [&](int number) {
    const std::uint64_t exchange = static_cast<std::uint64_t>(number) / members;
    const std::uint64_t member = static_cast<std::uint64_t>(number) % members;
    return Rows{.first = part.received + (exchange * rows * members + member) * part.count,
                .rows = rows,
                .elements = part.count,
                .stride = members * part.count};
  };
  float* received = part.received;  // in the last hop
  const auto of_last_hop = [&](int number) {
    return Rows{.first = received + static_cast<std::uint64_t>(number) * part.count,
                .elements = part.count,
                .stride = part.count};
  };
  const offload::SumOrder::Hop& last = hops_.back();
  if (hops_.size() > 1) {
    for (const offload::SumOrder::Addition& addition : hops_.front().additions)
      add(of_first_hop(addition.to), of_first_hop(addition.to), of_first_hop(addition.from));
    received += hops_.front().sent.size() * rows * members * part.count;
    for (std::size_t exchange = 0; exchange < last.sent.size(); ++exchange) {
      const Rows sent = of_first_hop(last.sent[exchange]);
      SLUICE_RETURN_IF_ERROR(ranks_.link->all_to_all(
          std::as_bytes(std::span(sent.first, (rows - 1) * sent.stride + part.count)),
          std::as_writable_bytes(
              std::span(received + exchange * rows * part.count, rows * part.count)),
          {.group = ProcessGroup::kPeers,
           .stream = part.stream,
           .sent_stride_bytes = sent.stride * sizeof(float)}));
    }
  }
  const Rows sum{.first = part.sum, .elements = part.count, .stride = part.count};
  for (const offload::SumOrder::Addition& addition : last.additions) {
    const bool is_last = &addition == &last.additions.back();
    add(is_last ? sum : of_last_hop(addition.to), of_last_hop(addition.to),
        of_last_hop(addition.from));
  }
  return {};
}

RankReduction::RankReduction(const RankLink& ranks, const offload::SumOrder& order,
                             std::uint64_t most_elements)
    : exchange_(ranks, order),
      world_(ranks.part.world),
      received_(exchange_.received_pieces() *
                offload::shard_piece_elements(most_elements, ranks.part.world)) {}

Result<std::span<float>> RankReduction::reduce(std::span<const float* const> roots,
                                               std::uint64_t elements) {
  const std::uint64_t piece = elements / static_cast<std::uint64_t>(world_);
  SLUICE_CHECK(piece * static_cast<std::uint64_t>(world_) == elements &&
                   exchange_.received_pieces() * piece <= received_.size(),
               "a gathered unit");
  SLUICE_RETURN_IF_ERROR(exchange_.reduce({.roots = roots,
                                           .piece = piece,
                                           .count = piece,
                                           .received = received_.data(),
                                           .sum = received_.data()},
                                          add_rows));
  return std::span(received_).first(piece);
}

Status gather_square_sums(const RankLink& ranks, const ModelLayout& model,
                          std::span<offload::SquareSum* const> sums) {
  const int world = ranks.part.world;
  const auto shard_of = [&](int unit, int rank) {
    return offload::shard_of(model.layout(unit).elements, {rank, world});
  };
  const auto count_of = [](const offload::UnitShard& shard) {
    return offload::sum_node_count(shard.first_element, shard.elements);
  };
  std::vector<std::size_t> nodes(static_cast<std::size_t>(world));  // the node count of each rank
  for (int rank = 0; rank < world; ++rank)
    for (int unit = 0; unit < model.units(); ++unit)
      nodes[static_cast<std::size_t>(rank)] += count_of(shard_of(unit, rank));
  const std::size_t most = *std::max_element(nodes.begin(), nodes.end());
  std::vector<double> mine;
  mine.reserve(most);
  for (const offload::SquareSum* sum : sums)
    mine.insert(mine.end(), sum->sums().begin(), sum->sums().end());
  mine.resize(most);
  std::vector<double> all(most * static_cast<std::size_t>(world));
  SLUICE_RETURN_IF_ERROR(ranks.link->all_gather(std::as_bytes(std::span(mine)),
                                                std::as_writable_bytes(std::span(all))));
  std::vector<std::size_t> next(static_cast<std::size_t>(world));
  for (int unit = 0; unit < model.units(); ++unit) {
    offload::SquareSum& sum = *sums[static_cast<std::size_t>(unit)];
    sum.reset(0);
    for (int rank = 0; rank < world; ++rank) {
      const offload::UnitShard shard = shard_of(unit, rank);
      std::size_t& from = next[static_cast<std::size_t>(rank)];
      const std::size_t count = count_of(shard);
      sum.append_sums(shard.elements,
                      std::span(all).subspan(static_cast<std::size_t>(rank) * most + from, count));
      from += count;
    }
  }
  return {};
}

Result<std::vector<double>> all_of_step(const RankLink& ranks, const offload::SumOrder& order,
                                        const std::vector<double>& own) {
  std::vector<double> by_rank(own.size() * static_cast<std::size_t>(ranks.part.world));
  SLUICE_RETURN_IF_ERROR(ranks.link->all_gather(std::as_bytes(std::span(own)),
                                                std::as_writable_bytes(std::span(by_rank))));
  std::vector<double> all(by_rank.size());
  for (std::size_t i = 0; i < by_rank.size(); ++i) {
    const auto micro_batch = static_cast<std::int64_t>(i % own.size());
    const auto rank = static_cast<int>(i / own.size());
    all[static_cast<std::size_t>(order.number_in_step(micro_batch, rank))] = by_rank[i];
  }
  return all;
}

}  // namespace sluice::engine
