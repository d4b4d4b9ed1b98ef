#include "engine/step/rank_reduction.h"

#include "aio/check.h"

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

}  // namespace sluice::engine
