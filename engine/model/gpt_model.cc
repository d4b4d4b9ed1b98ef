#include "engine/model/gpt_model.h"

#include <stdexcept>
#include <string>

#include "engine/model/block_unit.h"
#include "engine/model/embedding_unit.h"

namespace sluice::engine {
namespace {

const GptModel::Options& checked(const GptModel::Options& options) {
  const Status status = validate(options.shape);
  if (!status.ok()) throw std::invalid_argument(status.error().message());
  if (options.padded_vocab != 0 && options.padded_vocab < options.shape.vocab) {
    throw std::invalid_argument("the model cannot be built: padded_vocab is " +
                                std::to_string(options.padded_vocab) + ", less than vocab " +
                                std::to_string(options.shape.vocab));
  }
  if (options.chunk_rows < 0) {
    throw std::invalid_argument("the model cannot be built: chunk_rows is negative");
  }
  return options;
}

}  // namespace

GptModel::GptModel(const Options& options)
    : options_(checked(options)),
      layout_(gpt_model_layout(options)),
      head_(options.shape, options.chunk_rows) {
  units_.push_back(std::make_unique<EmbeddingUnit>(options.shape, options.padded_vocab));
  for (std::int64_t layer = 0; layer < options.shape.layers; ++layer) {
    units_.push_back(std::make_unique<BlockUnit>(options.shape, layer));
  }
}

}  // namespace sluice::engine
