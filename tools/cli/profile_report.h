// The results of `sluice profile` for a configuration's steps: tables for people, one JSON object
// for programs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/run_plan.h"
#include "engine/profile/flops_profile.h"
#include "engine/run/training_run.h"
#include "tools/measure/gpu_profile.h"

namespace sluice::tools {

struct ProfileReport {
  engine::FlopsProfile profile;  // mean of the measured steps
  const engine::RunPlan* plan = nullptr;
  std::string device;  // "NVIDIA H100" or "Intel ..., 2 threads"
  std::uint64_t tokens_per_step = 0;
  double median_step_s = 0;
  engine::TrainingRun::Traffic moved;  // over `moved_steps`
  int moved_steps = 0;
  std::optional<GpuProfile> kernels;
  std::vector<GpuProfile::Kernel> operators;  // on the CPU, by self time
  std::vector<PhaseTimes> by_phase;           // kernels and operators
  int recorded_steps = 0;
  double recorded_s = 0;  // in total; includes the cost of recording
  bool interrupted = false;

  // `units`: one row per unit instead of per kind of unit.
  std::string text(bool units) const;
  std::string json() const;

  // The largest part of a step: something that compute does or waits for.
  struct Holder {
    std::string what;  // "compute", "waiting for updates"
    double seconds = 0;
  };
  Holder holder() const;
};

}  // namespace sluice::tools
