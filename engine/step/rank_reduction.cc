#include "engine/step/rank_reduction.h"

#include <algorithm>

#include "aio/check.h"
#include "offload/adamw/sum_nodes.h"

namespace sluice::engine {

void add_pieces_by_tree(std::span<float> pieces, std::size_t count) {
  const std::size_t elements = pieces.size() / count;
  for (std::size_t stride = 1; stride < count; stride *= 2) {
    for (std::size_t left = 0; left + stride < count; left += 2 * stride) {
      float* const to = pieces.data() + left * elements;
      const float* const from = pieces.data() + (left + stride) * elements;
      for (std::size_t i = 0; i < elements; ++i) to[i] += from[i];
    }
  }
}

RankReduction::RankReduction(const RankLink& ranks, std::uint64_t most_elements)
    : ranks_(ranks),
      received_(ranks.is_alone() ? 0
                                 : offload::gathered_elements(most_elements, ranks.part.world)) {}

Result<std::span<float>> RankReduction::reduce(std::span<const float> sum) {
  const auto world = static_cast<std::size_t>(ranks_.part.world);
  SLUICE_CHECK(sum.size() % world == 0 && sum.size() <= received_.size(), "a gathered unit");
  const std::span<float> received = std::span(received_).first(sum.size());
  SLUICE_RETURN_IF_ERROR(
      ranks_.link->all_to_all(std::as_bytes(sum), std::as_writable_bytes(received)));
  add_pieces_by_tree(received, world);
  return received.first(sum.size() / world);
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
  std::vector<std::size_t> nodes(static_cast<std::size_t>(world));  // of each rank
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

}  // namespace sluice::engine
