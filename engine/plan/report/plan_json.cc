#include <nlohmann/json.hpp>

#include "engine/plan/report/plan_report.h"
#include "engine/plan/report/plan_words.h"
#include "offload/planner/zero_estimates.h"

namespace sluice::engine {
namespace {

using Json = nlohmann::ordered_json;

Json lines_json(const std::vector<MemoryLine>& lines, std::uint64_t used, std::uint64_t budget) {
  Json json = {{"bytes", used}, {"budget_bytes", budget}, {"parts", Json::object()}};
  for (const MemoryLine& line : lines)
    if (line.bytes > 0) json["parts"][line.what] = line.bytes;
  return json;
}

Json paths_json(const RunPlan& plan) {
  Json json = Json::array();
  const std::vector<NvmePathShare> shares = nvme_path_shares(plan);
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const NvmePathShare& it = shares[i];
    json.push_back({{"path", it.path},
                    {"weight", it.share ? Json(plan.stripes.weights[i]) : Json()},
                    {"share", it.share ? Json(*it.share) : Json()},
                    {"bytes", it.bytes},
                    {"room_bytes", it.room_bytes ? Json(*it.room_bytes) : Json()},
                    {"in_bytes_per_s", it.rates.in_bytes_per_s},
                    {"out_bytes_per_s", it.rates.out_bytes_per_s}});
  }
  return json;
}

Json units_json(const RunPlan& plan) {
  Json json = Json::array();
  for (std::size_t i = 0; i < plan.placement.places.size(); ++i) {
    const offload::UnitPlacement& place = plan.placement.places[i];
    const bool keeps = place.activations == offload::ActivationPlace::kKeep;
    const bool leaves = place.activations == offload::ActivationPlace::kOffload;
    const bool spills = place.activations == offload::ActivationPlace::kSpill;
    const bool has_any = has_activations(plan.input.units[i]);
    json.push_back({{"unit", plan.input.units[i].name},
                    {"elements", plan.input.units[i].elements},
                    {"gpu_elements", place.gpu_elements},
                    {"cpu_elements", place.cpu_elements},
                    {"nvme_elements", place.nvme_elements},
                    {"parameters_on_gpu", place.resident},
                    {"parameters_on_nvme", place.params_on_nvme},
                    {"activations", !has_any ? "none"
                                    : keeps  ? "kept"
                                    : leaves ? "input on the host"
                                    : spills ? "input on NVMe"
                                             : "recomputed"}});
  }
  return json;
}

Json step_json(const RunPlan& plan) {
  const offload::StepPrediction& step = plan.placement.prediction;
  Json busy = Json::object();
  for (int i = 0; i < offload::kResources; ++i) {
    const auto resource = static_cast<offload::Resource>(i);
    busy[resource_name(resource)] = step.busy(resource);
  }
  return {{"step_s", step.step_s},
          {"waves", plan.memory.waves.count()},
          {"wave_micro_batches", plan.memory.waves.of_a_wave},
          {"tokens_per_s", tokens_per_s(plan)},
          {"busy_s", busy},
          {"bottleneck", resource_name(step.bottleneck)},
          {"forward_s", step.forward_s},
          {"overlap_update", plan.input.step.overlap_update},
          {"update_exposed_s", step.update_exposed_s},
          {"h2d_bytes", step.h2d_bytes},
          {"d2h_bytes", step.d2h_bytes},
          {"nvme_read_bytes", step.nvme_read_bytes},
          {"nvme_write_bytes", step.nvme_write_bytes},
          {"link_bytes", step.link_bytes},
          {"link_exposed_s", step.link_exposed_s},
          {"nvme_write_bytes_per_day", step.nvme_write_bytes / step.step_s * kSecondsOfADay}};
}

Json changes_json(const RunPlan& plan) {
  Json json = Json::array();
  for (const offload::WhatIf& what_if : plan.what_if)
    json.push_back({{"with", change_name(what_if.change)},
                    {"step_s", what_if.step_s},
                    {"tokens_per_s_ratio", what_if.tokens_per_s_ratio},
                    {"nvme_write_tb_per_day", tb_per_day(plan, what_if)}});
  return json;
}

Json growth_json(const RunPlan& plan) {
  Json json = Json::array();
  for (const RankGrowth& row : plan.growth) {
    Json one = {{"ranks", row.ranks.world}, {"hosts", row.ranks.hosts()}, {"fits", row.fits}};
    if (row.fits)
      one.update({{"step_s", row.step_s},
                  {"tokens_per_s", row.tokens_per_s},
                  {"share_of_linear", row.share_of_linear},
                  {"link_exposed_s", row.link_exposed_s},
                  {"bottleneck", resource_name(row.bottleneck)}});
    json.push_back(std::move(one));
  }
  return json;
}

// The results of a simulation: times and traffic.
Json metrics_json(const StepMetrics& step) {
  return {{"step", step.step},
          {"step_ms", step.step_ms},
          {"tokens_per_s", step.tokens_per_s},
          {"forward_ms", step.forward_ms},
          {"backward_ms", step.backward_ms},
          {"update_ms", step.update_ms},
          {"update_exposed_ms", step.update_exposed_ms},
          {"nvme_read_bytes", step.nvme_read_bytes},
          {"nvme_write_bytes", step.nvme_write_bytes},
          {"h2d_bytes", step.h2d_bytes},
          {"d2h_bytes", step.d2h_bytes}};
}

Json zero_json(const RunPlan& plan, const ClusterShape& cluster) {
  std::uint64_t largest = 0;
  for (const offload::UnitCost& unit : plan.input.units) largest = std::max(largest, unit.elements);
  const offload::ZeroModel model{plan.parameters, largest};
  const offload::ZeroMachines machines{.gpus_per_node = cluster.gpus_per_node,
                                       .nodes = cluster.nodes};
  Json json = Json::array();
  const auto add = [&](int stage, const std::vector<offload::ZeroEstimate>& estimates) {
    for (const offload::ZeroEstimate& it : estimates) {
      json.push_back({{"stage", stage},
                      {"offload_optimizer", it.offload_optimizer},
                      {"offload_param", it.offload_params},
                      {"zero_init", it.zero_init},
                      {"gpu_bytes", it.gpu_bytes},
                      {"cpu_bytes", it.cpu_bytes}});
    }
  };
  add(2, offload::zero2_estimates(model, machines));
  add(3, offload::zero3_estimates(model, machines));
  return json;
}

}  // namespace

std::string prediction_json(const RunPlan& plan) { return step_json(plan).dump(); }
std::string what_if_json(const RunPlan& plan) { return changes_json(plan).dump(); }

std::string plan_json(const config::Config& config, const RunPlan& plan,
                      const ClusterShape& cluster, const std::vector<StepMetrics>& simulated) {
  const offload::TierBytes& budget = plan.budget;
  Json json = {
      {"fits", plan.placement.fits},
      {"parameters", plan.parameters},
      {"active_parameters", plan.active},
      {"trained_parameters", plan.trained},
      {"tokens_per_step", plan.tokens_per_step},
      {"ranks", plan.ranks.world},
      {"ranks_per_host", plan.ranks.local_world},
      {"tiers",
       {{"gpu", lines_json(plan.memory.gpu, plan.memory.gpu_bytes(), budget.gpu)},
        {"cpu", lines_json(plan.memory.host, plan.memory.host_bytes(), budget.cpu)},
        {"nvme", lines_json(plan.memory.nvme, plan.memory.nvme_bytes(), budget.nvme)}}},
      {"nvme_paths", paths_json(plan)},
      {"units", units_json(plan)},
      {"deepspeed_estimates", plan.trains_adapters ? Json::array() : zero_json(plan, cluster)},
      {"machine", Json::parse(to_json(plan.machine))}};
  if (plan.longest_sequence) json["longest_sequence"] = *plan.longest_sequence;
  if (plan.trains_adapters) {
    json["base_bits"] = config.lora.base_bits;
    json["double_quant"] = config.lora.double_quant;
  }
  if (!plan.placement.fits) {
    json["reason"] = does_not_fit(config, plan);
    return json.dump(2);
  }
  json["prediction"] = step_json(plan);
  if (const auto outlook = run_outlook(config, plan))
    json["run"] = {{"steps", outlook->steps},
                   {"hours", outlook->hours},
                   {"nvme_write_tb", outlook->written_tb},
                   {"drive_rated_tb", plan.drive_tbw},
                   {"share_of_drive_life", outlook->drive_life}};
  if (const auto wear = drive_wear(plan))
    json["drives"] = {{"write_tb_per_day", wear->tb_per_day},
                      {"rated_tb", plan.drive_tbw},
                      {"rated_tb_is_assumed", plan.drive_tbw_assumed},
                      {"days_of_training", wear->days}};
  json["what_if"] = changes_json(plan);
  if (plan.host_floor_bytes) json["host_floor_bytes"] = *plan.host_floor_bytes;
  if (!plan.growth.empty()) json["growth"] = growth_json(plan);
  for (const StepMetrics& step : simulated) json["simulated_steps"].push_back(metrics_json(step));
  return json.dump(2);
}

}  // namespace sluice::engine
