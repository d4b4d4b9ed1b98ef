// A model that is described at run time, as the Python package finds it in a torch.nn.Module: units
// of parameters, some of which may be frozen. It becomes two ModelLayouts with the same units: one
// of the trained parameters, with state, gradients and checkpoints, and one of the frozen
// parameters, which are only streamed.
//
// In both, the first unit has the embedding's role and contains everything outside of blocks. It is
// acquired together with any block, so it has its own slot. The last unit is empty, because the
// module computes the loss. A family's model is an exception: it has its own units.
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
  std::string name;                 // in the module, such as "transformer.h.3.attn.c_attn.weight"
  std::vector<std::int64_t> shape;  // may be empty: a scalar
  bool trained = true;
};

struct ModuleUnit {
  std::string name;
  std::vector<ModuleParameter> parameters;
};

class ModuleLayout {
 public:
  // A described parameter: its index in the layout of trained or of frozen parameters.
  struct ParameterIndex {
    bool trained = true;
    int parameter = 0;  // index in UnitLayout::parameters
  };

  // `units`: the unit outside of all blocks first, then the blocks, in the expected order of use.
  static Result<ModuleLayout> create(std::vector<ModuleUnit> units);
  // For a module whose passes are computed by a family's model with the module's parameter names:
  // its units are the model's, including the head, and nothing is frozen.
  static ModuleLayout of_family(ModelLayout model);

  int units() const { return static_cast<int>(described_.size()); }  // the described units
  const ModuleUnit& described(int unit) const { return described_[index(unit)]; }
  const ParameterIndex& parameter_index(int unit, int parameter) const {
    return indices_[index(unit)][index(parameter)];
  }
  const ModelLayout& trained() const { return trained_; }
  const ModelLayout& frozen() const { return frozen_; }
  bool has_frozen() const { return frozen_.parameter_elements() > 0; }
  bool is_family() const { return is_family_; }

 private:
  ModuleLayout(std::vector<ModuleUnit> described, std::vector<std::vector<ParameterIndex>> indices,
               ModelLayout trained, ModelLayout frozen)
      : described_(std::move(described)),
        indices_(std::move(indices)),
        trained_(std::move(trained)),
        frozen_(std::move(frozen)) {}
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }

  std::vector<ModuleUnit> described_;
  std::vector<std::vector<ParameterIndex>> indices_;  // by unit and described parameter
  ModelLayout trained_;
  ModelLayout frozen_;
  bool is_family_ = false;
};

}  // namespace sluice::engine
