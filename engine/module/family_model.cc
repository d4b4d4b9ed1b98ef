#include "engine/module/family_model.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "aio/check.h"
#include "aio/log.h"
#include "aio/unix_time.h"
#include "engine/budget/configured_model.h"
#include "engine/device/gpu.h"
#include "engine/families/families.h"
#include "engine/families/make_model.h"
#include "engine/plan/report/plan_report.h"
#include "engine/plan/run_plan.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kMostUnasked = 4096;  // tokens in a row on a GPU, if no length is configured

// The module's name of a family's parameter, in a module with a head.
std::string module_name(const ParameterNames& names, const std::string& name) {
  return name == names.head ? name : std::string(names.prefix) + name;
}

bool is_same(const ModelShape& one, const ModelShape& other) {
  return one.layers == other.layers && one.hidden == other.hidden && one.heads == other.heads &&
         one.context_tokens == other.context_tokens && one.vocab == other.vocab &&
         one.dropout == other.dropout && one.ffn() == other.ffn() && one.family == other.family &&
         one.numbers == other.numbers;
}

}  // namespace

Result<FamilyModel> FamilyModel::read(const std::string& text) {
  SLUICE_ASSIGN_OR_RETURN(HuggingFaceModel model, read_hugging_face_config(text));
  SLUICE_RETURN_IF_ERROR(validate(model.shape));
  if (!model.notes.empty()) return Error(ErrorCode::kInvalidArgument, model.notes.front());
  FamilyModel family(std::move(model.shape));
  if (!is_same(family.configured({}, {.length = true}).model.shape(), family.shape_))
    return Error(ErrorCode::kInvalidArgument,
                 "its sizes are none that a configuration of the engine can say");
  return family;
}

ModelLayout FamilyModel::named(const ModelOptions& options) const {
  const ParameterNames& names = family_of(shape_).parameter_names(shape_);
  const auto whole = std::make_shared<const ModelLayout>(model_layout(options));
  const ModelLayout& layout = *whole;
  std::vector<ModelLayout::Unit> units;
  for (int unit = 0; unit < layout.units(); ++unit) {
    UnitLayout own = layout.layout(unit);
    for (ParameterSpec& parameter : own.parameters)
      parameter.name = module_name(names, parameter.name);
    // The layout that has it keeps it alive.
    units.push_back({.kind = std::shared_ptr<const UnitKind>(whole, &layout.kind(unit)),
                     .layout = std::move(own),
                     .borrowed = layout.borrowed(unit)});
  }
  return {{.hidden = layout.hidden(), .vocab = layout.vocab()}, std::move(units)};
}

std::vector<ModuleUnit> FamilyModel::units() const {
  const ModuleLayout layout = ModuleLayout::of_family(named({.shape = shape_}));
  std::vector<ModuleUnit> units;
  units.reserve(static_cast<std::size_t>(layout.units()));
  for (int unit = 0; unit < layout.units(); ++unit) units.push_back(layout.described(unit));
  return units;
}

config::Config FamilyModel::configured(config::Config config, const Asked& asked) const {
  config::Model& model = config.model;
  model.path.clear();
  model.init_from.clear();
  model.preset = config::kCustomPreset;
  model.family = shape_.family;
  model.layers = shape_.layers;
  model.hidden = shape_.hidden;
  model.heads = shape_.heads;
  model.context_tokens = shape_.context_tokens;
  model.vocab = shape_.vocab;
  model.dropout = shape_.dropout;
  model.ffn_multiplier = static_cast<double>(shape_.ffn()) / static_cast<double>(shape_.hidden);
  model.numbers.clear();
  for (const auto& [name, value] : shape_.numbers) model.numbers[name] = value;
  if (!asked.length) {
    config.data.sequence_tokens = asked.on_gpu ? std::min(shape_.context_tokens, kMostUnasked) : 1;
  }
  // One micro-batch at a time, and its unit inputs stay on the compute device.
  config.placement.wave_micro_batches = 1;
  config.placement.boundaries_to_cpu = Tristate::kOff;
  config.placement.boundaries_to_nvme = Tristate::kOff;
  // Matches the passes of sluice/_native.py. On a GPU the planner chooses if no block is
  // checkpointed.
  if (config.placement.recompute == Tristate::kAuto && (asked.checkpoints || !asked.on_gpu))
    config.placement.recompute = asked.checkpoints ? Tristate::kOn : Tristate::kOff;
  return config;
}

ModelOptions FamilyModel::options(const config::Config& config) const {
  return configured_model(config, uses_cuda(config));
}

ModuleLayout FamilyModel::layout(const config::Config& config) const {
  ModelLayout layout = named(options(config));
  // Code that reads parameters may keep this unit acquired together with a block. With several
  // ranks the host gathers all other units in one shared buffer.
  if (!uses_cuda(config)) layout.hold(0);
  return ModuleLayout::of_family(std::move(layout));
}

Result<RunPlan> FamilyModel::plan(const config::Config& config, const Asked& asked,
                                  PlanRunOptions options,
                                  std::vector<std::string>& assumptions) const {
  config::Config whole = config;
  whole.optimizer.groups.clear();  // groups refer to the module's names, and change no size
  if (!asked.length) {
    whole.data.sequence_tokens =
        std::min(shape_.context_tokens, asked.on_gpu ? kMostUnasked : kAssumedTokens);
    assumptions = {"rows are taken to have " + std::to_string(whole.data.sequence_tokens) +
                   " tokens (data.sequence_length)"};
  }
  const std::uint64_t copy =
      checkpoint_copy_bytes(config, named({.shape = shape_}), options.ranks.world);
  options.beside.bytes.cpu += copy;
  options.beside.at_most.cpu += copy;
  options.holds_first = !asked.on_gpu;
  options.names = &kModuleNames;
  SLUICE_ASSIGN_OR_RETURN(
      RunPlan plan,
      ask_with_gradients_moved(whole, asked.on_gpu, options.ranks.world,
                               [&](const config::Config& it) { return plan_run(it, options); }));
  if (copy > 0) plan.memory.host.push_back(checkpoint_copy_line(copy));
  return plan;
}

Result<ModulePlaces> FamilyModel::places(const config::Config& config, const Asked& asked,
                                         Communicator* link, const std::string& cache_path) const {
  ModulePlaces made;
  if (!asked.on_gpu && !has_choice(config, asked.on_gpu)) return made;
  const std::int64_t now_s = unix_s_now();
  SLUICE_ASSIGN_OR_RETURN(PlanOfFirst of_first,
                          plan_of_first(link, config, {.cache_path = cache_path, .unix_s = now_s},
                                        [&](const std::optional<MeasuredLink>& measured) {
                                          return plan(config, asked,
                                                      {.cache_path = cache_path,
                                                       .unix_s = now_s,
                                                       .ranks = rank_group(link),
                                                       .link = measured},
                                                      made.assumptions);
                                        }));
  made.places = std::move(of_first.places);
  if (!of_first.plan) return made;
  if (of_first.plan->placement.fits) {
    made.predicted_step_s = of_first.plan->placement.prediction.step_s;
    made.prediction = prediction_json(*of_first.plan);
  } else {
    log::warning("the planner finds no placement that fits: it takes the one that lacks least");
  }
  return made;
}

at::Tensor FamilyModel::logits(const std::vector<std::vector<at::Tensor>>& values,
                               const at::Tensor& tokens) const {
  const at::NoGradGuard no_tape;
  const std::unique_ptr<Model> model = make_model({.shape = shape_});
  TORCH_CHECK_VALUE(static_cast<int>(values.size()) == model->units(), "the model has ",
                    model->units(), " units, and values are given of ", values.size());
  std::vector<UnitViews> views(values.size());
  for (std::size_t unit = 0; unit < values.size(); ++unit)
    for (const at::Tensor& value : values[unit]) views[unit].append(value);
  at::Tensor flow = tokens;
  for (int unit = 0; unit < model->head_index(); ++unit)
    flow = model->unit(unit).forward({.unit = unit, .training = false},
                                     views[static_cast<std::size_t>(unit)], flow, nullptr);
  std::vector<const UnitViews*> lenders;
  for (const int lender : model->layout().lenders(model->head_index()))
    lenders.push_back(&views[static_cast<std::size_t>(lender)]);
  return model->head().logits(
      with_borrowed(model->layout(), model->head_index(), views.back(), lenders), flow,
      tokens.size(1));
}

}  // namespace sluice::engine
