#include "engine/model/llama/llama_units.h"

#include "engine/model/llama/llama_block.h"
#include "engine/model/llama/llama_embedding.h"
#include "engine/model/llama/llama_head.h"
#include "engine/model/llama/llama_shape.h"

namespace sluice::engine {

ModelUnits make_llama_units(const ModelOptions& options) {
  const LlamaShape shape = llama_shape(options.shape);
  ModelUnits units;
  units.body.push_back(std::make_unique<LlamaEmbedding>(shape, options.padded_vocab));
  for (std::int64_t layer = 0; layer < shape.layers; ++layer)
    units.body.push_back(std::make_unique<LlamaBlock>(shape, options.lora, layer));
  units.head = std::make_unique<LlamaHead>(shape, options.chunk_rows);
  return units;
}

}  // namespace sluice::engine
