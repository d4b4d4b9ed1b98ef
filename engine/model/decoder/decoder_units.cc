#include "engine/model/decoder/decoder_units.h"

#include <cstdint>
#include <memory>

#include "engine/model/decoder/decoder_block.h"
#include "engine/model/decoder/decoder_embedding.h"
#include "engine/model/decoder/decoder_head.h"

namespace sluice::engine {

ModelUnits make_decoder_units(const DecoderSpec& without_fp8, const ModelOptions& options) {
  const DecoderSpec spec = with_fp8(without_fp8, options);
  ModelUnits units;
  units.body.push_back(std::make_unique<DecoderEmbedding>(spec, options.padded_vocab));
  for (std::int64_t layer = 0; layer < spec.layers; ++layer)
    units.body.push_back(std::make_unique<DecoderBlock>(spec.block_at(layer), options.lora, layer));
  units.head = std::make_unique<DecoderHead>(spec, options.chunk_rows);
  return units;
}

}  // namespace sluice::engine
