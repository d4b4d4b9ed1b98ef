// The output of step_bench: a table for people, JSON for programs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "aio/machine_info.h"
#include "bench/step_options.h"
#include "engine/config/config.h"
#include "offload/step_program.h"
#include "tools/measure/gpu_profile.h"
#include "tools/measure/step_measure.h"

namespace sluice::bench {

struct StepReport {
  StepBenchOptions options;
  config::Config config;
  std::uint64_t parameters = 0;
  std::uint64_t untied_embedding = 0;  // parameters of an embedding without a tied head
  std::uint64_t tokens_per_step = 0;
  double setup_seconds = 0;  // plan, memory, first weights
  std::uint64_t planned_gpu_bytes = 0;
  std::optional<double> predicted_step_s;
  std::string gpu;                     // the GPU of the plan; empty: none
  double gpu_product_flops_per_s = 0;  // its large products, as probed
  std::uint64_t planned_host_bytes = 0;
  std::uint64_t planned_nvme_bytes = 0;
  std::optional<offload::Waves> waves;  // set once a plan is made
  tools::MemoryUse before;  // after a GPU's context exists, before the run allocates anything
  tools::StepMeasurement measured;
  std::optional<tools::GpuProfile> profile;
  std::optional<std::string> out_of_memory;  // what was requested, and of which memory

  // Only with measured steps.
  std::string table() const;
  std::string json(const aio::MachineInfo& machine, const std::string& command) const;

  double median_step_seconds() const;
  double tokens_per_second() const;  // at the median step time
};

}  // namespace sluice::bench
