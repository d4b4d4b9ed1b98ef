// A model that is described at run time, as the Python package finds it in a torch.nn.Module: units
// of parameters, some of which may be frozen. Becomes two ModelLayouts with the same units: one of
// what is trained, with state, gradients and checkpoints, and one of what is frozen, which only
// comes and goes.
//
// In both the first unit, of the embedding's role, is what is outside of all blocks: it is acquired
// beside any of them, so it has a slot of its own. The last one is empty: the loss is the module's.
// Unless it is of a family's model.
//
// Threads: values. Errors: kInvalidArgument, with the parameter's name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/model/model_layout.h"

namespace sluice::engine {

struct ModuleParameter {
  std::string name;                 // the module's: "transformer.h.3.attn.c_attn.weight"
  std::vector<std::int64_t> shape;  // may be empty: one number
  bool trained = true;
};

struct ModuleUnit {
  std::string name;
  std::vector<ModuleParameter> parameters;
};

class ModuleLayout {
 public:
  // Where a described parameter is: in the layout of what is trained, or of what is frozen.
  struct Place {
    bool trained = true;
    int parameter = 0;  // in UnitLayout::parameters
  };

  // `units`: those outside of all blocks first, then the blocks, in the order in which they are
  // expected to be used.
  static Result<ModuleLayout> create(std::vector<ModuleUnit> units);
  // Of a module whose passes are those of a family's model, which has the module's names of
  // parameters: its units are the model's, head and all, and nothing is frozen.
  static ModuleLayout of_family(ModelLayout model);

  int units() const { return static_cast<int>(described_.size()); }  // those that were described
  const ModuleUnit& described(int unit) const { return described_[index(unit)]; }
  const Place& place(int unit, int parameter) const {
    return places_[index(unit)][index(parameter)];
  }
  const ModelLayout& trained() const { return trained_; }
  const ModelLayout& frozen() const { return frozen_; }
  bool has_frozen() const { return frozen_.parameter_elements() > 0; }
  bool is_family() const { return is_family_; }

 private:
  ModuleLayout(std::vector<ModuleUnit> described, std::vector<std::vector<Place>> places,
               ModelLayout trained, ModelLayout frozen)
      : described_(std::move(described)),
        places_(std::move(places)),
        trained_(std::move(trained)),
        frozen_(std::move(frozen)) {}
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }

  std::vector<ModuleUnit> described_;
  std::vector<std::vector<Place>> places_;  // by unit and described parameter
  ModelLayout trained_;
  ModelLayout frozen_;
  bool is_family_ = false;
};

}  // namespace sluice::engine
