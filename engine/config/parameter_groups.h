// Which learning rate and weight decay each parameter of a model has: what optimizer.groups says
// about its name.
//
// A pattern is a shell glob (fnmatch(3): *, ? and [...], where * goes over dots). It is matched
// with a parameter's name in checkpoints ("layers.0.mlp.up_proj.weight") and with the name that it
// has in transformers ("model.layers.0.mlp.up_proj.weight"). Of several groups the first that
// matches counts. What a group does not say follows from optimizer.params: lr, and weight_decay as
// far as `decayed` has it.
//
// Threads: any; pure functions.
// Errors:  kInvalidArgument names a pattern that no parameter is left for, and the nearest names.
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
  // Each once. The first two are those of parameters without a group, by engine::ParameterGroup.
  std::vector<ParameterSetting> each;
  // By unit and parameter, an index into them; empty without groups: it is ParameterSpec::group.
  std::vector<std::vector<int>> of;
  std::vector<int> taken;  // parameters of each group
};

Result<ParameterSettings> parameter_settings(const Optimizer& optimizer,
                                             const engine::ModelLayout& layout,
                                             const engine::ParameterNames& names);

}  // namespace sluice::config
