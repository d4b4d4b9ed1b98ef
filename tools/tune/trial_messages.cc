#include "tools/tune/trial_messages.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "aio/bounded_json.h"

namespace sluice::tools {
namespace {

using nlohmann::json;

// If any part of a line is invalid, none of it is used.
template <typename Read>
auto parsed(const std::string& line, const Read& read) -> Result<decltype(read(json()))> {
  try {
    SLUICE_ASSIGN_OR_RETURN(const json message, read_json<json>(line));
    return read(message);
  } catch (const json::exception& error) {
    return Error(ErrorCode::kInvalidArgument,
                 std::string("a trial's message cannot be read: ") + error.what());
  }
}

std::string text_of(const json& object) {
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

double finite(double value) { return std::isfinite(value) ? value : 0; }

json json_of(const PlanFacts& facts) {
  return {{"cuda", facts.cuda},
          {"state_on_nvme", facts.state_on_nvme},
          {"params_on_nvme", facts.params_on_nvme},
          {"gpu_fraction", facts.gpu_fraction},
          {"cpu_fraction", facts.cpu_fraction},
          {"nvme_fraction", facts.nvme_fraction},
          {"largest_unit_elements", facts.largest_unit_elements},
          {"units", facts.units},
          {"prefetch_units", facts.prefetch_units},
          {"wave_micro_batches", facts.wave_micro_batches},
          {"swap_buffers", facts.swap_buffers},
          {"record_elements", facts.record_elements}};
}

PlanFacts facts_of(const json& object) {
  return {.cuda = object.at("cuda"),
          .state_on_nvme = object.at("state_on_nvme"),
          .params_on_nvme = object.at("params_on_nvme"),
          .gpu_fraction = object.at("gpu_fraction"),
          .cpu_fraction = object.at("cpu_fraction"),
          .nvme_fraction = object.at("nvme_fraction"),
          .largest_unit_elements = object.at("largest_unit_elements"),
          .units = object.at("units"),
          .prefetch_units = object.at("prefetch_units"),
          .wave_micro_batches = object.value("wave_micro_batches", std::int64_t{0}),
          .swap_buffers = object.at("swap_buffers"),
          .record_elements = object.at("record_elements")};
}

}  // namespace

std::string to_line(const TrialRequest& request) {
  if (const auto* const plan = std::get_if<PlanRequest>(&request))
    return text_of({{"plan", plan->config}});
  const auto& measure = std::get<MeasureRequest>(request);
  return text_of({{"measure", measure.config},
                  {"warmup", measure.warmup},
                  {"steps", measure.steps},
                  {"seconds", measure.seconds}});
}

std::string to_line(const TrialPlan& plan) {
  return text_of({{"step_s", finite(plan.forecast.step_s)},
                  {"refusal", plan.forecast.refusal},
                  {"run_id", plan.forecast.run_id},
                  {"facts", json_of(plan.facts)}});
}

std::string to_line(const Trial& trial) {
  if (!trial.measured()) return text_of({{"failure", trial.failure}});
  return text_of({{"step_s", trial.step_s},
                  {"error_s", trial.error_s},
                  {"tokens_per_s", trial.tokens_per_s},
                  {"gpu_bytes", trial.gpu_bytes},
                  {"host_bytes", trial.host_bytes}});
}

Result<TrialRequest> parse_request(const std::string& line) {
  return parsed(line, [](const json& object) -> TrialRequest {
    if (object.contains("plan")) return PlanRequest{.config = object.at("plan")};
    return MeasureRequest{.config = object.at("measure"),
                          .warmup = object.at("warmup"),
                          .steps = object.at("steps"),
                          .seconds = object.at("seconds")};
  });
}

Result<TrialPlan> parse_plan(const std::string& line) {
  return parsed(line, [](const json& object) {
    return TrialPlan{.forecast = {.step_s = object.at("step_s"),
                                  .refusal = object.at("refusal"),
                                  .run_id = object.at("run_id")},
                     .facts = facts_of(object.at("facts"))};
  });
}

Result<Trial> parse_trial(const std::string& line) {
  return parsed(line, [](const json& object) {
    if (object.contains("failure")) {
      const std::string failure = object.at("failure");
      return Trial{.failure = failure.empty() ? "no reason was given" : failure};
    }
    const double step_s = object.at("step_s");
    if (!(step_s > 0)) return Trial{.failure = "a step that takes no time was reported"};
    return Trial{.failure = {},
                 .step_s = step_s,
                 .error_s = object.at("error_s"),
                 .tokens_per_s = object.at("tokens_per_s"),
                 .gpu_bytes = object.at("gpu_bytes"),
                 .host_bytes = object.at("host_bytes")};
  });
}

}  // namespace sluice::tools
