// PlanSubject: what is planned for: a model's run, and the machine as far as it is described. It
// does not change from here on.
//
// Threads: one.
// Errors:  those of the configuration and of a description that lacks something.
#pragma once

#include <string>
#include <vector>

#include "aio/file_system.h"
#include "aio/result.h"
#include "engine/model/model_layout.h"
#include "engine/plan/run_plan.h"

namespace sluice::engine {

struct PlanSubject {
  config::Config config;     // of one rank; with a path for a drive that is only described
  DescribedMachine machine;  // with what is assumed of it
  std::vector<std::string> assumed;
  bool on_gpu = false;
  ModelLayout model;
  offload::RankGroup ranks;
  bool is_module = false;  // DescribedModel
  const ParameterNames* names = nullptr;
  TakenBeside beside;
};

// `files` reports whether the run's folders are here.
Result<PlanSubject> plan_subject(const config::Config& given, const PlanRunOptions& asked,
                                 aio::FileSystem& files);

}  // namespace sluice::engine
