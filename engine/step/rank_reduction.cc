#include "engine/step/rank_reduction.h"

#include <algorithm>

#include "aio/check.h"
#include "offload/adamw/sum_nodes.h"

namespace sluice::engine {

RankReduction::RankReduction(const RankLink& ranks, const offload::SumOrder& order,
                             std::uint64_t most_elements)
    : ranks_(ranks),
      order_(order),
      additions_(order.additions()),
      received_(static_cast<std::uint64_t>(order.exchanges()) *
                offload::gathered_elements(most_elements, ranks.part.world)) {}

Result<std::span<float>> RankReduction::reduce(std::span<const float* const> roots,
                                               std::uint64_t elements) {
  const auto world = static_cast<std::uint64_t>(ranks_.part.world);
  const auto exchanges = static_cast<std::uint64_t>(order_.exchanges());
  SLUICE_CHECK(elements % world == 0 && exchanges * elements <= received_.size(),
               "a gathered unit");
  const std::uint64_t piece = elements / world;
  for (std::uint64_t number = 0; number < exchanges; ++number) {
    const auto root = static_cast<std::size_t>(order_.exchange(static_cast<int>(number)));
    SLUICE_RETURN_IF_ERROR(ranks_.link->all_to_all(
        std::as_bytes(std::span(roots[root], elements)),
        std::as_writable_bytes(std::span(received_).subspan(number * elements, elements))));
  }
  for (const offload::SumOrder::Addition& addition : additions_) {
    float* const to = received_.data() + static_cast<std::uint64_t>(addition.to) * piece;
    const float* const from = received_.data() + static_cast<std::uint64_t>(addition.from) * piece;
    for (std::uint64_t i = 0; i < piece; ++i) to[i] += from[i];
  }
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
