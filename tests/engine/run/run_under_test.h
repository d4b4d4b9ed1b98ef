// A small run that trains.
#pragma once

#include <memory>
#include <stdexcept>
#include <vector>

#include "engine/budget/configured_model.h"
#include "engine/device/gpu.h"
#include "engine/run/training_run.h"
#include "tests/engine/small_config.h"

namespace sluice::engine {

class SmallRun : public SmallConfig {
 public:
  using SmallConfig::SmallConfig;

  // Without a state yet.
  std::unique_ptr<TrainingRun> make(PlanOptions options = {},
                                    Communicator& link = single_process()) const {
    const config::Config configuration = config(options.ranks.world);
    options.on_gpu = uses_cuda(configuration);
    const ModelLayout model = configured_layout(configuration, options.on_gpu);
    const auto plan = plan_memory(configuration, model, options);
    if (!plan.ok()) throw std::runtime_error(plan.error().message());
    auto run = TrainingRun::create(configuration, *plan, link);
    if (!run.ok()) throw std::runtime_error(run.error().message());
    return std::move(*run);
  }

  // Created and initialised.
  std::unique_ptr<TrainingRun> start(const PlanOptions& options = {},
                                     Communicator& link = single_process()) const {
    auto run = make(options, link);
    const Status initialised = run->initialise({});
    if (!initialised.ok()) throw std::runtime_error(initialised.error().message());
    return run;
  }
};

inline std::vector<float> masters_of(TrainingRun& run) {
  std::vector<float> masters;
  const Status taken =
      run.take_state([&](const ParameterSpec&, const offload::ConstStateSlice& state) -> Status {
        masters.insert(masters.end(), state.master().begin(), state.master().end());
        return {};
      });
  if (!taken.ok()) throw std::runtime_error(taken.error().message());
  return masters;
}

}  // namespace sluice::engine
