#include "engine/run/base_parameters.h"

#include <optional>
#include <utility>
#include <vector>

#include "aio/check.h"
#include "aio/log.h"
#include "engine/model/initial_values.h"
#include "engine/run/load_parameters.h"
#include "engine/run/weights_file.h"
#include "engine/step/adapted_unit_parameters.h"

namespace sluice::engine {

using offload::ParamOffloader;

BaseParameters::BaseParameters(const MemoryPlan& plan, const ModelLayout& model,
                               aio::Executor* executor)
    : model_(model), layout_(model.base()), form_(plan.types.form), executor_(executor) {
  for (int unit = 0; unit < layout_.units(); ++unit) elements_ += layout_.layout(unit).elements;
}

Result<std::unique_ptr<BaseParameters>> BaseParameters::create(const MemoryPlan& plan,
                                                               const ModelLayout& model,
                                                               const Environment& environment) {
  std::unique_ptr<BaseParameters> base(new BaseParameters(plan, model, environment.executor));
  SLUICE_ASSIGN_OR_RETURN(
      base->params_,
      ParamOffloader::create(base_param_options(plan), {.reads = environment.drives->reads.get(),
                                                        .writes = environment.drives->writes.get(),
                                                        .executor = environment.executor}));
  SLUICE_ASSIGN_OR_RETURN(base->made_, make_base_unit_parameters(
                                           plan, base->layout_, *base->params_, environment.trace));
  base->device_ = base->made_.get();
  return base;
}

BaseParameters::~BaseParameters() {
  made_.reset();
  const Status removed = params_ ? params_->remove() : Status();
  if (!removed.ok()) log::warning(removed.error().message());
}

std::unique_ptr<UnitParameters> BaseParameters::beside(std::unique_ptr<UnitParameters> adapters) {
  SLUICE_CHECK(made_ != nullptr, "a base is given to one set of adapters");
  return make_adapted_unit_parameters(model_, std::move(made_), std::move(adapters));
}

// Of all units, on their way.
struct BaseParameters::Load {
  ReadParameter read;
  const std::function<Status(std::uint64_t done)>& progress;
  std::vector<float> values = {};
  std::vector<std::byte> packed = {};  // for units that live on the device
  std::uint64_t done = 0;
};

Status BaseParameters::load_unit(int unit, Load& load) {
  const auto width = static_cast<std::uint64_t>(offload::param_bytes_per_element(form_));
  ParamOffloader::Lease lease;
  if (params_->on_host(unit)) {
    SLUICE_ASSIGN_OR_RETURN(lease, params_->acquire(unit, ParamOffloader::Access::kReplace));
  }
  return read_unit(
      layout_.layout(unit), load.read, load.values,
      [&](std::uint64_t first, std::span<const float> values) -> Status {
        if (lease) {
          offload::pack_parameters(form_, values, lease.bytes().subspan(first * width).data());
        } else {
          load.packed.resize(values.size() * width);
          offload::pack_parameters(form_, values, load.packed.data());
          SLUICE_RETURN_IF_ERROR(device_->fill_resident(unit, first * width, load.packed));
        }
        load.done += values.size();
        return load.progress ? load.progress(load.done) : Status();
      });
}

Status BaseParameters::load(const config::Config& config, aio::IoQueue& queue,
                            const ModelShape& shape,
                            const std::function<Status(std::uint64_t done)>& progress) {
  std::optional<WeightsFile> weights;
  if (!config.model.init_from.empty()) {
    auto opened = WeightsFile::open(queue, config.model.init_from, shape);
    if (!opened.ok()) return std::move(opened).error().with_context("model.init_from");
    weights = *std::move(opened);
  }
  const auto seed = static_cast<std::uint64_t>(config.model.init_seed);
  fingerprint_ = BaseFingerprint();
  Load load{.read = [&](const ParameterSpec& parameter, std::uint64_t first,
                        std::span<float> values) -> Status {
              if (weights)
                SLUICE_RETURN_IF_ERROR(weights->read(parameter, first, values));
              else if (executor_ != nullptr)
                fill_initial(parameter, seed, first, values, *executor_);
              else
                fill_initial(parameter, seed, first, values);
              fingerprint_.add(parameter.elements, first, values);
              return {};
            },
            .progress = progress};
  for (int unit = 0; unit < layout_.units(); ++unit) SLUICE_RETURN_IF_ERROR(load_unit(unit, load));
  return params_->drain();
}

}  // namespace sluice::engine
