// The learning rate and weight decay of each parameter of a model, from optimizer.groups and the
// parameter's name.
//
// A pattern is a shell glob (fnmatch(3): *, ? and [...], where * matches dots too). It is matched
// with a parameter's name in checkpoints ("layers.0.mlp.up_proj.weight") and its name in
// transformers ("model.layers.0.mlp.up_proj.weight"). The first group that matches counts. Values
// that a group does not give come from optimizer.params: lr, and weight_decay as `decayed` selects
// it.
//
// Threads: any; pure functions.
// Errors:  kInvalidArgument names a pattern that matches no remaining parameter, and the nearest
//          names.
#pragma once

#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/config/config.h"
#include "engine/model/model_layout.h"
#include "engine/weights/parameter_names.h"

namespace sluice::config {

struct ParameterSetting {
  double learning_rate = 0;  // before the schedule
  double weight_decay = 0;

  bool operator==(const ParameterSetting&) const = default;
};

struct ParameterSettings {
  // Without duplicates. The first two are for parameters without a group, by
  // engine::ParameterGroup.
  std::vector<ParameterSetting> each;
  // By unit and parameter, an index into `each`. Empty without groups: then it is
  // ParameterSpec::group.
  std::vector<std::vector<int>> of;
  std::vector<int> taken;  // number of parameters in each group
};

Result<ParameterSettings> parameter_settings(const Optimizer& optimizer,
                                             const engine::ModelLayout& layout,
                                             const engine::ParameterNames& names);

}  // namespace sluice::config
