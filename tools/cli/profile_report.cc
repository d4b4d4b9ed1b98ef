#include "tools/cli/profile_report.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "aio/text.h"
#include "aio/units.h"
#include "engine/observe/text_table.h"
#include "engine/plan/report/plan_report.h"

namespace sluice::tools {
namespace {

using engine::decimals;
using engine::PassPhase;
using engine::TextRow;
using Json = nlohmann::ordered_json;
using Traffic = engine::TrainingRun::Traffic;

constexpr std::size_t kShown = 24;     // kernels or operators
constexpr std::size_t kOfPhase = 5;    // the same, for each phase
constexpr double kWorthSaying = 1.01;  // least gain in tokens/s over the plan that is worth showing

struct Flow {
  const char* name;
  const char* key;
  std::uint64_t Traffic::*bytes;
  double (*limit)(const offload::MachineSpeeds& speeds);
};

constexpr Flow kFlows[] = {
    {"NVMe read", "nvme_read_bytes", &Traffic::nvme_read_bytes,
     [](const offload::MachineSpeeds& speeds) { return speeds.drives.in_bytes_per_s; }},
    {"NVMe written", "nvme_write_bytes", &Traffic::nvme_write_bytes,
     [](const offload::MachineSpeeds& speeds) { return speeds.drives.out_bytes_per_s; }},
    {"host to GPU", "h2d_bytes", &Traffic::h2d_bytes,
     [](const offload::MachineSpeeds& speeds) { return speeds.bus.in_bytes_per_s; }},
    {"GPU to host", "d2h_bytes", &Traffic::d2h_bytes,
     [](const offload::MachineSpeeds& speeds) { return speeds.bus.out_bytes_per_s; }},
};

double a_step(const ProfileReport& report, const Flow& flow) {
  return report.moved_steps == 0
             ? 0
             : static_cast<double>(report.moved.*flow.bytes) / report.moved_steps;
}

std::string flow_table(const ProfileReport& report) {
  std::vector<TextRow> rows = {{"moved", "per step", "GB/s over the step", "share of limit"}};
  for (const Flow& flow : kFlows) {
    const double bytes = a_step(report, flow);
    if (bytes == 0 || report.profile.step_s <= 0) continue;
    const double rate = bytes / report.profile.step_s;
    const double limit = flow.limit(report.plan->machine.speeds);
    rows.push_back({flow.name, format_bytes(static_cast<std::uint64_t>(bytes)),
                    decimals(1e-9 * rate, 2), limit > 0 ? percent(rate / limit) : ""});
  }
  return rows.size() == 1 ? std::string() : engine::aligned(rows);
}

double trained_flops_per_s(const ProfileReport& report) {
  double of_token = 0;
  for (const engine::UnitFlops& unit : report.profile.units)
    of_token += engine::trained_flops(unit.of_token);
  return report.median_step_s > 0
             ? of_token * static_cast<double>(report.tokens_per_step) / report.median_step_s
             : 0;
}

std::string tflops(double flops_per_s) {
  return decimals(1e-12 * flops_per_s, flops_per_s < 1e13 ? 3 : 1) + " TFLOP/s";
}

std::string heading(const ProfileReport& report) {
  const double speed = trained_flops_per_s(report);
  const double limit = report.profile.limit_flops_per_s;
  std::string text =
      std::to_string(report.profile.passes.steps()) + " steps of " +
      std::to_string(report.tokens_per_step) + " tokens on " + report.device + ": " +
      decimals(1e3 * report.median_step_s, 1) + " ms (median), " +
      engine::compact(static_cast<double>(report.tokens_per_step) / report.median_step_s) +
      " tokens/s, " + tflops(speed);
  if (limit > 0)
    text += ", " + percent(speed / limit) + " of the speed of large matrix products (" +
            tflops(limit) + ")";
  return text + "\n";
}

std::string help_text(const ProfileReport& report) {
  const std::string table = engine::what_if_table(*report.plan);
  if (table.empty()) return "";
  const auto& changes = report.plan->what_if;
  const bool any = std::any_of(changes.begin(), changes.end(), [](const offload::WhatIf& change) {
    return change.tokens_per_s_ratio >= kWorthSaying;
  });
  return "\npredicted effect of changes" + std::string(any ? "" : ": none of more than 1%") +
         "\n\n" + table;
}

Json kernels_json(const std::vector<GpuProfile::Kernel>& kernels, int steps) {
  const double per_step = 1.0 / std::max(steps, 1);
  Json list = Json::array();
  for (const GpuProfile::Kernel& kernel : kernels)
    list.push_back({{"name", kernel.name},
                    {"calls", static_cast<double>(kernel.calls) * per_step},
                    {"seconds", kernel.seconds * per_step}});
  return list;
}

}  // namespace

ProfileReport::Holder ProfileReport::holder() const {
  const engine::PassTotals& passes = profile.passes;
  double computing = 0;
  for (std::size_t i = 0; i < engine::kPassPhases; ++i) {
    const auto phase = static_cast<PassPhase>(i);
    if (!engine::is_wait(phase)) computing += passes.seconds(phase);
  }
  const double params = passes.seconds(PassPhase::kAwaitParams);
  const double inputs = passes.seconds(PassPhase::kAwaitInputs);
  const double rest = profile.step_s - computing - params - inputs - profile.update_exposed_s;
  const std::array<Holder, 5> holders = {
      {{"compute", computing},
       {"waiting for parameters", params},
       {"waiting for units' inputs", inputs},
       {"waiting for updates", profile.update_exposed_s},
       {"other work (moving gradients, the norm, the host)", std::max(rest, 0.0)}}};
  return *std::max_element(holders.begin(), holders.end(),
                           [](const Holder& a, const Holder& b) { return a.seconds < b.seconds; });
}

std::string ProfileReport::text(bool units) const {
  std::string text =
      heading(*this) + "\n" + engine::phase_table(profile) + "\n" +
      engine::unit_table(profile, units ? engine::UnitRows::kUnits : engine::UnitRows::kKinds);
  const double recorded_step_s = recorded_s / std::max(recorded_steps, 1);
  if (kernels) text += "\n" + kernels->table(kShown);
  if (!operators.empty())
    text += "\n" +
            operator_table(operators,
                           {.steps = recorded_steps, .shown = kShown, .step_s = recorded_step_s});
  if (!by_phase.empty())
    text +=
        "\n" + table_by_phase(by_phase, {.steps = recorded_steps,
                                         .shown = kOfPhase,
                                         .step_s = kernels ? kernels->wall_seconds / recorded_steps
                                                           : recorded_step_s});
  if (const std::string flows = flow_table(*this); !flows.empty()) text += "\n" + flows;
  const Holder held = holder();
  text += "\nlimited by " + held.what + ": " + percent(held.seconds / profile.step_s) +
          " of the step\n" + engine::plan_summary(*plan) + "\n";
  return text + help_text(*this);
}

std::string ProfileReport::json() const {
  const Holder held = holder();
  Json json = {{"device", device},
               {"steps", profile.passes.steps()},
               {"interrupted", interrupted},
               {"tokens_per_step", tokens_per_step},
               {"median_step_s", median_step_s},
               {"tokens_per_s", static_cast<double>(tokens_per_step) / median_step_s},
               {"flops_per_s", trained_flops_per_s(*this)},
               {"profile", Json::parse(engine::flops_profile_json(profile))},
               {"held_by", {{"what", held.what}, {"seconds", held.seconds}}},
               {"moved", Json::object()}};
  for (const Flow& flow : kFlows) {
    const double limit = flow.limit(plan->machine.speeds);
    json["moved"][flow.key] = {{"a_step", a_step(*this, flow)},
                               {"limit_bytes_per_s", limit > 0 ? Json(limit) : Json()}};
  }
  if (kernels) {
    json["kernels"] = kernels_json(kernels->kernels, kernels->steps);
    json["copies"] = kernels_json(kernels->copies, kernels->steps);
  }
  if (!operators.empty()) json["operators"] = kernels_json(operators, recorded_steps);
  for (const PhaseTimes& phase : by_phase)
    json["by_phase"][phase.name] = kernels_json(phase.kernels, recorded_steps);
  json["plan"] = Json::parse(engine::prediction_json(*plan));
  json["what_if"] = Json::parse(engine::what_if_json(*plan));
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace sluice::tools
