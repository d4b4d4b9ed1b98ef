#include "engine/module/module_layout.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

namespace sluice::engine {
namespace {

// For a unit described from outside only the parameters are known. What its passes save is between
// autograd and the module.
class ModuleUnitKind final : public UnitKind {
 public:
  ModuleUnitKind(const std::string& name, UnitRole role, std::uint64_t elements)
      : UnitKind(name, role), elements_(static_cast<double>(elements)) {}

  // Assumes that every parameter is multiplied once for each token.
  Flops flops(std::int64_t /*tokens*/) const override {
    return {.forward = 2 * elements_, .backward = 4 * elements_, .recompute = 0};
  }
  std::uint64_t peak_bytes(const PassShape& /*pass*/,
                           const PeakOptions& /*options*/) const override {
    return 0;
  }

 private:
  const double elements_;
};

int group_of(const ModuleParameter& parameter) {
  return parameter.shape.size() > 1 ? kDecayed : kUndecayed;
}

// Adds the trained or the frozen parameters of a unit, group by group, each group in the module's
// order.
void add_half(const ModuleUnit& unit, bool trained, UnitLayout& layout,
              std::vector<ModuleLayout::ParameterIndex>& indices) {
  layout.name = unit.name;
  for (const int group : {kDecayed, kUndecayed}) {
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      const ModuleParameter& parameter = unit.parameters[i];
      if (parameter.trained != trained || group_of(parameter) != group) continue;
      indices[i] = {.trained = trained, .parameter = static_cast<int>(layout.parameters.size())};
      layout.add({.name = parameter.name,
                  .shape = parameter.shape.empty() ? std::vector<std::int64_t>{1} : parameter.shape,
                  .group = group,
                  // The first gradient of a micro-batch is written instead of added. Small
                  // parameters are contiguous, and are zeroed at once with the gaps after them.
                  .gradient_is_product = group == kDecayed});
    }
  }
}

ModelLayout layout_of(const std::vector<UnitLayout>& units) {
  std::vector<ModelLayout::Unit> all;
  for (std::size_t i = 0; i < units.size(); ++i) {
    const UnitRole role = i == 0                  ? UnitRole::kEmbedding
                          : i + 1 == units.size() ? UnitRole::kHead
                                                  : UnitRole::kBlock;
    // Each unit has its own kind, because nothing says that two units are alike.
    all.push_back({.kind = std::make_shared<ModuleUnitKind>(units[i].name, role, units[i].elements),
                   .layout = units[i]});
  }
  ModelLayout layout({.hidden = 1, .vocab = 1}, std::move(all));
  layout.keep_acquired(0);  // what is outside of blocks is used together with them
  return layout;
}

Error invalid(const std::string& what) { return Error(ErrorCode::kInvalidArgument, what); }

Status check(const std::vector<ModuleUnit>& units) {
  if (units.empty()) return invalid("a module without parameters has nothing to train");
  std::set<std::string> names;
  for (const ModuleUnit& unit : units) {
    if (!names.insert("unit " + unit.name).second)
      return invalid("two units have the name " + unit.name);
    for (const ModuleParameter& parameter : unit.parameters) {
      if (!names.insert("parameter " + parameter.name).second)
        return invalid("parameter " + parameter.name + " is described twice");
      if (std::any_of(parameter.shape.begin(), parameter.shape.end(),
                      [](std::int64_t size) { return size < 1; }))
        return invalid("parameter " + parameter.name + " has no elements");
    }
  }
  return {};
}

}  // namespace

Result<ModuleLayout> ModuleLayout::create(std::vector<ModuleUnit> units) {
  SLUICE_RETURN_IF_ERROR(check(units));
  std::vector<std::vector<ParameterIndex>> indices(units.size());
  std::vector<UnitLayout> trained(units.size());
  std::vector<UnitLayout> frozen(units.size());
  for (std::size_t i = 0; i < units.size(); ++i) {
    indices[i].resize(units[i].parameters.size());
    add_half(units[i], true, trained[i], indices[i]);
    add_half(units[i], false, frozen[i], indices[i]);
  }
  for (std::vector<UnitLayout>* layouts : {&trained, &frozen}) {
    if (layouts->size() == 1) layouts->push_back({.name = "(no block)"});
    layouts->push_back({.name = "(loss)"});
  }
  ModelLayout of_trained = layout_of(trained);
  if (of_trained.parameter_elements() == 0)
    return invalid("no parameter of the module requires a gradient: there is nothing to train");
  return ModuleLayout(std::move(units), std::move(indices), std::move(of_trained),
                      layout_of(frozen));
}

ModuleLayout ModuleLayout::of_family(ModelLayout model) {
  std::vector<ModuleUnit> described;
  std::vector<std::vector<ParameterIndex>> indices;
  std::vector<UnitLayout> nothing;
  for (int unit = 0; unit < model.units(); ++unit) {
    const UnitLayout& layout = model.layout(unit);
    ModuleUnit own{.name = layout.name, .parameters = {}};
    std::vector<ParameterIndex> of_unit;
    for (const ParameterSpec& parameter : layout.parameters) {
      of_unit.push_back({.trained = true, .parameter = static_cast<int>(of_unit.size())});
      own.parameters.push_back({.name = parameter.name, .shape = parameter.shape});
    }
    described.push_back(std::move(own));
    indices.push_back(std::move(of_unit));
    nothing.push_back({.name = layout.name});
  }
  ModuleLayout layout(std::move(described), std::move(indices), std::move(model),
                      layout_of(nothing));
  layout.is_family_ = true;
  return layout;
}

}  // namespace sluice::engine
