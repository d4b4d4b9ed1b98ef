#include "engine/model/gpt2/gpt2_units.h"

#include "engine/model/gpt2/gpt2_block.h"
#include "engine/model/gpt2/gpt2_embedding.h"
#include "engine/model/gpt2/gpt2_head.h"

namespace sluice::engine {

ModelUnits make_gpt2_units(const ModelOptions& options) {
  const ModelShape& shape = options.shape;
  ModelUnits units;
  units.body.push_back(std::make_unique<Gpt2Embedding>(shape, options.padded_vocab));
  for (std::int64_t layer = 0; layer < shape.layers; ++layer)
    units.body.push_back(std::make_unique<Gpt2Block>(shape, layer));
  units.head = std::make_unique<Gpt2Head>(shape, options.chunk_rows);
  return units;
}

}  // namespace sluice::engine
