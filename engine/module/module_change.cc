// ModuleRun: parameter values that a script changes between steps.
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/module/module_run.h"
#include "offload/state/state_tiles.h"

namespace sluice::engine {
namespace {

Error refused(const std::string& what) { return Error(ErrorCode::kInvalidArgument, what); }

std::span<const float> floats(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

}  // namespace

Result<ModuleRun::NewValues> ModuleRun::checked(const NewValues& change) const {
  const ModuleUnit& unit = layout_.described(change.unit);
  const ModuleParameter& parameter = unit.parameters.at(static_cast<std::size_t>(change.parameter));
  for (const at::Tensor& tensor : {change.values, change.before})
    if (tensor.sizes() != at::IntArrayRef(parameter.shape))
      return refused("parameter " + parameter.name + " is given values with another shape");
  if (at(change.unit).acquired) return refused("unit " + unit.name + " is in use");
  if (!parameter.trained && !parts_->frozen()->trained().on_host(change.unit))
    return Error(ErrorCode::kUnsupported, "parameter " + parameter.name +
                                              " is frozen and has no copy on the host: change it "
                                              "before the module has an engine");
  const NewValues made{.unit = change.unit,
                       .parameter = change.parameter,
                       .values = change.values.to(at::kCPU, at::kFloat).contiguous(),
                       .before = change.before.to(at::kCPU, at::kFloat).contiguous()};
  const std::span<const float> values = floats(made.values);
  if (!std::all_of(values.begin(), values.end(), [](float it) { return std::isfinite(it); }))
    return refused("parameter " + parameter.name + " is given a value that is not finite");
  return made;
}

Status ModuleRun::change(const std::vector<NewValues>& changes) {
  const at::NoGradGuard no_tape;
  std::map<const ParameterSpec*, NewValues> trained;
  std::vector<NewValues> frozen;
  std::set<int> units;  // units with changed trained parameters
  for (const NewValues& it : changes) {
    SLUICE_ASSIGN_OR_RETURN(NewValues change, checked(it));
    const ModuleLayout::ParameterIndex& index = layout_.parameter_index(it.unit, it.parameter);
    if (!index.trained) {
      frozen.push_back(std::move(change));
      continue;
    }
    units.insert(it.unit);
    const auto& parameters = model().layout(it.unit).parameters;
    trained[&parameters[static_cast<std::size_t>(index.parameter)]] = std::move(change);
  }
  const auto amend = [&](const ParameterSpec& parameter,
                         const offload::StateSlice& state) -> Status {
    const auto found = trained.find(&parameter);
    if (found == trained.end()) return {};
    const std::span<float> master = state.master();
    const auto values = floats(found->second.values).subspan(state.first_element, master.size());
    const auto before = floats(found->second.before).subspan(state.first_element, master.size());
    for (std::size_t i = 0; i < master.size(); ++i)
      if (std::bit_cast<std::uint32_t>(values[i]) != std::bit_cast<std::uint32_t>(before[i]))
        master[i] = values[i];
    return {};
  };
  if (!units.empty()) {
    const std::vector<int> ascending(units.begin(), units.end());
    SLUICE_RETURN_IF_ERROR(parts_->state().amend(ascending, amend));
    parts_->parameters().units().invalidate();
  }
  for (const NewValues& change : frozen) SLUICE_RETURN_IF_ERROR(change_frozen(change));
  return {};
}

Status ModuleRun::change_frozen(const NewValues& change) {
  const UnitLayout& layout = layout_.frozen().layout(change.unit);
  const auto index =
      static_cast<std::size_t>(layout_.parameter_index(change.unit, change.parameter).parameter);
  const offload::ParamForm form = frozen_plan_->types.form;
  {
    SLUICE_ASSIGN_OR_RETURN(
        const auto lease,
        parts_->frozen()->trained().acquire(change.unit, offload::ParamOffloader::Access::kUpdate));
    const std::uint64_t first = layout.parameters[index].first_element *
                                static_cast<std::uint64_t>(offload::param_bytes_per_element(form));
    offload::pack_parameters(form, floats(change.values), lease.bytes().subspan(first).data());
  }
  parts_->frozen()->units().invalidate();
  return {};
}

}  // namespace sluice::engine
