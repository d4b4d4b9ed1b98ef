// Model: a model's units, in forward order. It owns no parameters and no state: every call gets its
// parameters as views of a slot (slot_storage.h). Made by make_model()
// (engine/families/make_model.h).
//
//   x = unit(0).forward(context, views(0), tokens, ...)           the embedding
//   x = unit(i).forward(context, views(i), x, ...)                for each block
//   head().loss_and_gradient(views(last), x, ...)                 and back again
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "aio/check.h"
#include "engine/model/head_unit.h"
#include "engine/model/model_layout.h"
#include "engine/model/model_shape.h"
#include "engine/model/model_unit.h"

namespace sluice::engine {

struct ModelUnits {
  std::vector<std::unique_ptr<ModelUnit>> body;  // all but the head
  std::unique_ptr<HeadUnit> head;
};

class Model {
 public:
  Model(const ModelOptions& options, ModelLayout layout, ModelUnits units)
      : options_(options), layout_(std::move(layout)), units_(std::move(units)) {
    SLUICE_CHECK(static_cast<int>(units_.body.size()) == layout_.head() && units_.head,
                 "a model's units are those of its layout");
  }

  const ModelShape& shape() const { return options_.shape; }
  const ModelLayout& layout() const { return layout_; }
  int units() const { return layout_.units(); }
  const UnitLayout& layout(int unit) const { return layout_.layout(unit); }

  // The embedding (0) and the blocks. The head is separate, because it returns a loss instead of an
  // output.
  const ModelUnit& unit(int unit) const { return *units_.body[static_cast<std::size_t>(unit)]; }
  const HeadUnit& head() const { return *units_.head; }
  int head_index() const { return layout_.head(); }

 private:
  ModelOptions options_;
  ModelLayout layout_;
  ModelUnits units_;
};

}  // namespace sluice::engine
