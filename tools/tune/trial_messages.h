// The messages between `sluice tune` and the child that runs a trial: one line of JSON each way.
//
//   {"plan": CONFIG}                                        -> a TrialPlan
//   {"measure": CONFIG, "warmup": 2, "steps": 5, "seconds": 0} -> a Trial
//
// CONFIG is the text of a whole run file.
#pragma once

#include <string>
#include <variant>

#include "aio/result.h"
#include "tools/tune/tune_dimensions.h"
#include "tools/tune/tune_search.h"

namespace sluice::tools {

struct PlanRequest {
  std::string config;
};

struct MeasureRequest {
  std::string config;
  int warmup = 1;
  int steps = 1;
  double seconds = 0;  // limit on the measured steps, of which there is at least one; 0: no limit
};

using TrialRequest = std::variant<PlanRequest, MeasureRequest>;

struct TrialPlan {
  Forecast forecast;
  PlanFacts facts;
};

// Messages have no line ends. Parse functions return kInvalidArgument.
std::string to_line(const TrialRequest& request);
std::string to_line(const TrialPlan& plan);
std::string to_line(const Trial& trial);
Result<TrialRequest> parse_request(const std::string& line);
Result<TrialPlan> parse_plan(const std::string& line);
Result<Trial> parse_trial(const std::string& line);  // sets everything but took_s

}  // namespace sluice::tools
