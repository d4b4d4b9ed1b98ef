#include "engine/plan/fp8_gain.h"

#include <cstddef>
#include <utility>

#include "engine/budget/configured_model.h"
#include "engine/plan/gpu_sheets.h"
#include "engine/probe/unit_times.h"

namespace sluice::engine {
namespace {

// SustainedShare::fp8; 0: unknown.
double gain_of_gpu(const PlanSubject& subject, const ProbeReport& machine) {
  const DescribedMachine& described = subject.machine;
  if (described.gpu != nullptr) return described.gpu->products.fp8;
  if (described.describes_gpu()) return 0;
  const auto here = find_gpu_sheet(machine.gpu);
  return here.ok() ? (*here)->products.fp8 : 0;
}

}  // namespace

Result<std::optional<offload::WhatIf>> fp8_what_if(const PlanSubject& subject,
                                                   const PlacedRun& placed) {
  const config::Config& config = subject.config;
  ProbeReport machine = placed.machine.report;
  const double gain = gain_of_gpu(subject, machine);
  if (!subject.on_gpu || subject.is_module || gain == 0 || config.fp8.enabled ||
      config.precision != config::Precision::kBf16)
    return std::optional<offload::WhatIf>();
  PlanSubject with = subject;
  with.config.fp8.enabled = true;
  with.model = configured_layout(with.config, subject.on_gpu);
  const PassShape pass = {.micro_batch = config.batch.micro, .tokens = config.data.sequence_tokens};
  const EstimateRates rates = {
      .product_flops_per_s = machine.speeds.gpu_matmul_flops_per_s,
      .kernel_bytes_per_s = kernel_rate(machine.speeds.gpu_copy_bytes_per_s),
      .fp8_flops_per_s = gain * machine.speeds.gpu_matmul_flops_per_s};
  for (std::size_t i = 0; i < machine.units.kinds.size(); ++i)
    machine.units.kinds[i].seconds +=
        fp8_seconds(with.model.kind(with.model.first_of_kinds()[i]), pass, rates);
  SLUICE_ASSIGN_OR_RETURN(const Candidate changed,
                          best_candidate(with, with.config, machine, placed.input.budget));
  if (!changed.placement.fits) return std::optional<offload::WhatIf>();
  return std::optional(offload::what_if(offload::WhatIf::Change::kFp8, placed.placement.prediction,
                                        changed.placement.prediction));
}

}  // namespace sluice::engine
