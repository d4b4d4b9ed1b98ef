#include "engine/runtime/model_parameters.h"

#include <utility>

#include "aio/log.h"

namespace sluice::engine {

using offload::ParamOffloader;

Result<std::unique_ptr<ModelParameters>> ModelParameters::create(const MemoryPlan& plan,
                                                                 const ModelLayout& model,
                                                                 const Environment& environment) {
  std::unique_ptr<ModelParameters> made(new ModelParameters());
  if (plan.base) {
    SLUICE_ASSIGN_OR_RETURN(made->base_,
                            BaseParameters::create(plan, model,
                                                   {.drives = environment.drives,
                                                    .executor = environment.base_executor,
                                                    .trace = environment.trace,
                                                    .ranks = environment.ranks,
                                                    .cuda_ranks = environment.cuda_ranks}));
  }
  SLUICE_ASSIGN_OR_RETURN(
      made->trained_,
      ParamOffloader::create(param_options(plan), {.reads = environment.drives->reads.get(),
                                                   .writes = environment.drives->writes.get(),
                                                   .executor = environment.executor}));
  SLUICE_ASSIGN_OR_RETURN(made->units_,
                          make_unit_parameters(plan, model, *made->trained_, environment.ranks,
                                               environment.cuda_ranks, environment.trace));
  if (made->base_) made->units_ = made->base_->beside(std::move(made->units_));
  return made;
}

ModelParameters::~ModelParameters() {
  end_passes();
  const Status removed = trained_ ? trained_->remove() : Status();
  if (!removed.ok()) log::warning(removed.error().message());
}

}  // namespace sluice::engine
