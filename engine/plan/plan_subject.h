// PlanSubject: what is planned: a model's run, and the machine as far as it is described. It is
// constant from here on.
//
// Threads: one.
// Errors:  those of the configuration, and of an incomplete description.
#pragma once

#include <string>
#include <vector>

#include "aio/file_system.h"
#include "aio/result.h"
#include "engine/model/model_layout.h"
#include "engine/plan/run_plan.h"

namespace sluice::engine {

struct PlanSubject {
  config::Config config;     // for one rank; with a path for a described drive
  DescribedMachine machine;  // with the assumed values
  std::vector<std::string> assumed;
  bool on_gpu = false;
  ModelLayout model;
  offload::Topology ranks;
  bool is_module = false;  // DescribedModel is set
  const ParameterNames* names = nullptr;
  OutsideMemory outside;
};

// kInvalidArgument: fp8.enabled, for a model in which nothing is computed in fp8.
Status check_fp8(const config::Config& config, const ModelLayout& model, bool is_module);

// `files` reports whether the run's folders are on this machine.
Result<PlanSubject> plan_subject(const config::Config& given, const PlanRunOptions& asked,
                                 aio::FileSystem& files);

}  // namespace sluice::engine
