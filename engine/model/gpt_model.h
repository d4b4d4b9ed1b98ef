// GptModel: a GPT-2 as the list of its units, in forward order. It owns no parameters and no
// state: every call is given its parameters as views of a slot (slot_storage.h).
//
//   x = embedding().forward(context, views(0), tokens, ...)
//   x = block(layer).forward(context, views(1 + layer), x, ...)       for each layer
//   head().loss_and_gradient(views(last), x, ...)                     and back again
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/model/gpt_layout.h"
#include "engine/model/head_unit.h"
#include "engine/model/model_unit.h"

namespace sluice::engine {

class GptModel {
 public:
  using Options = GptModelOptions;
  // Throws std::invalid_argument with the sentence of validate().
  explicit GptModel(const Options& options);

  const GptShape& shape() const { return options_.shape; }
  const ModelLayout& layout() const { return layout_; }
  int units() const { return layout_.units(); }
  const UnitLayout& layout(int unit) const { return layout_.layout(unit); }

  // The embedding (0) and the blocks (1 + layer); the head has a loss instead of an output.
  const ModelUnit& unit(int unit) const { return *units_[static_cast<std::size_t>(unit)]; }
  const ModelUnit& embedding() const { return unit(0); }
  const ModelUnit& block(int layer) const { return unit(1 + layer); }
  const HeadUnit& head() const { return head_; }
  int head_index() const { return layout_.head(); }

 private:
  Options options_;
  ModelLayout layout_;
  std::vector<std::unique_ptr<ModelUnit>> units_;
  HeadUnit head_;
};

}  // namespace sluice::engine
