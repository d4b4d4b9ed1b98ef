// What `sluice tune` and the child that runs a trial say to each other: a line of JSON each way.
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
  double seconds = 0;  // of measured steps, at most, and at least one; 0: no limit
};

using TrialRequest = std::variant<PlanRequest, MeasureRequest>;

struct TrialPlan {
  Forecast forecast;
  PlanFacts facts;
};

// Without line ends. Parsing: kInvalidArgument.
std::string to_line(const TrialRequest& request);
std::string to_line(const TrialPlan& plan);
std::string to_line(const Trial& trial);
Result<TrialRequest> parse_request(const std::string& line);
Result<TrialPlan> parse_plan(const std::string& line);
Result<Trial> parse_trial(const std::string& line);  // all but took_s

}  // namespace sluice::tools
