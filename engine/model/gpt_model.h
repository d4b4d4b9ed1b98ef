// GptModel: a GPT-2 as the list of its units, in forward order. It owns no parameters and no
// state: every call is given its parameters as views of a slot (slot_storage.h).
//
//   x = embedding().forward(context, views(0), tokens, ...)
//   x = block(layer).forward(context, views(1 + layer), x, ...)       for each layer
//   head().loss_and_gradient(views(last), views(0)[kToken], x, ...)   and back again
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/model/gpt_shape.h"
#include "engine/model/head_unit.h"
#include "engine/model/model_unit.h"

namespace sluice::engine {

class GptModel {
 public:
  struct Options {
    GptShape shape;
    std::int64_t padded_vocab = 0;  // rows of the token embedding in its slot; 0: the vocabulary
    std::int64_t chunk_rows = 0;    // of the loss; 0: by the shape
  };
  // Throws std::invalid_argument with the sentence of validate().
  explicit GptModel(const Options& options);

  const GptShape& shape() const { return options_.shape; }
  int units() const { return static_cast<int>(units_.size()) + 1; }
  const UnitLayout& layout(int unit) const;

  // The embedding (0) and the blocks (1 + layer); the head has a loss instead of an output.
  const ModelUnit& unit(int unit) const { return *units_[static_cast<std::size_t>(unit)]; }
  const ModelUnit& embedding() const { return unit(0); }
  const ModelUnit& block(int layer) const { return unit(1 + layer); }
  const HeadUnit& head() const { return head_; }
  int head_index() const { return units() - 1; }

 private:
  Options options_;
  std::vector<std::unique_ptr<ModelUnit>> units_;
  HeadUnit head_;
};

}  // namespace sluice::engine
