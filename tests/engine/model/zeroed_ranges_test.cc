#include "engine/model/zeroed_ranges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/engine/model/specs.h"

namespace sluice::engine {
namespace {

// Includes hidden sizes whose matrices end between multiples of the alignment.
TEST(ZeroedRanges, AreAllOfAUnitButItsProducts) {
  for (const std::int64_t hidden : {24, 64, 1600}) {
    const ModelShape shape{
        .layers = 2, .hidden = hidden, .heads = 1, .context_tokens = 16, .vocab = 50};
    const ModelLayout model = model_layout({.shape = shape, .padded_vocab = 64});
    for (int unit = 0; unit < model.units(); ++unit) {
      const UnitLayout& layout = model.layout(unit);
      std::vector<int> covered(layout.slot_elements, 0);
      std::uint64_t end = 0;
      for (const offload::ElementRange& range : zeroed_ranges(layout)) {
        EXPECT_GT(range.elements, 0U);
        EXPECT_TRUE(range.first > end || (range.first == 0 && end == 0)) << "adjoining";
        end = range.first + range.elements;
        for (std::uint64_t i = range.first; i < end; ++i) ++covered.at(i);
      }
      for (const ParameterSpec& parameter : layout.parameters) {
        if (!parameter.gradient_is_product) continue;
        for (std::uint64_t i = 0; i < parameter.elements; ++i)
          ++covered.at(parameter.first_element + i);
      }
      EXPECT_EQ(std::count(covered.begin(), covered.end(), 1),
                static_cast<std::ptrdiff_t>(covered.size()))
          << layout.name << " " << hidden;
    }
  }
}

TEST(ZeroedRanges, OfABlockOfWholeTilesIsItsVectorsAlone) {
  const DecoderSpec spec =
      spec_of({.layers = 1, .hidden = 1600, .heads = 25, .context_tokens = 16, .vocab = 50});
  const UnitLayout layout = block_layout(spec.block, 0);
  const auto ranges = zeroed_ranges(layout);
  ASSERT_EQ(ranges.size(), 1U);
  EXPECT_EQ(ranges[0].first, 12U * 1600 * 1600);
}

TEST(ZeroedRanges, OfEmbeddingAndHeadIsEverything) {
  const ModelShape shape{.layers = 1, .hidden = 64, .heads = 1, .context_tokens = 16, .vocab = 50};
  for (const UnitLayout& layout :
       {embedding_layout(spec_of(shape), 64), head_layout(spec_of(shape))}) {
    const auto ranges = zeroed_ranges(layout);
    ASSERT_EQ(ranges.size(), 1U) << layout.name;
    EXPECT_EQ(ranges[0].elements, layout.slot_elements);
  }
}

}  // namespace
}  // namespace sluice::engine
