// What `sluice profile` found out about a configuration's steps: tables for people, one JSON object
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
  engine::FlopsProfile profile;  // of the measured steps, in the mean
  const engine::RunPlan* plan = nullptr;
  std::string device;  // "NVIDIA H100" or "Intel ..., 2 threads"
  std::uint64_t tokens_per_step = 0;
  double median_step_s = 0;
  engine::TrainingRun::Traffic moved;  // over `moved_steps`
  int moved_steps = 0;
  std::optional<GpuProfile> kernels;
  std::vector<GpuProfile::Kernel> operators;  // of the CPU, by their own time
  std::vector<PhaseTimes> by_phase;           // of both
  int recorded_steps = 0;
  double recorded_s = 0;  // in all: recording takes time as well
  bool interrupted = false;

  // `units`: each unit in a row, instead of their kinds.
  std::string text(bool units) const;
  std::string json() const;

  // What takes most of a step of those that compute does or waits for.
  struct Holder {
    std::string what;  // "compute", "waiting for updates"
    double seconds = 0;
  };
  Holder holder() const;
};

}  // namespace sluice::tools
