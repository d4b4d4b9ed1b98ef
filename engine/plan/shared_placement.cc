#include "engine/plan/shared_placement.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "aio/bounded_json.h"

namespace sluice::engine {
namespace {

using nlohmann::json;
using offload::UnitPlacement;

json json_of(const UnitPlacement& place) {
  return {place.gpu_elements, place.cpu_elements,   place.nvme_elements,
          place.resident,     place.params_on_nvme, static_cast<int>(place.activations)};
}

UnitPlacement place_of(const json& values) {
  return {.gpu_elements = values.at(0).get<std::uint64_t>(),
          .cpu_elements = values.at(1).get<std::uint64_t>(),
          .nvme_elements = values.at(2).get<std::uint64_t>(),
          .resident = values.at(3).get<bool>(),
          .params_on_nvme = values.at(4).get<bool>(),
          .activations = static_cast<offload::ActivationPlace>(values.at(5).get<int>())};
}

SharedPlacement placement_of(const json& content) {
  SharedPlacement all{.places = {},
                      .block_slots = content.at("block_slots").get<int>(),
                      .wave_micro_batches = content.at("wave_micro_batches").get<std::int64_t>(),
                      .nvme_weights = content.at("nvme_weights").get<std::vector<int>>(),
                      .moves_gradients = content.at("moves_gradients").get<bool>(),
                      .copies_on_gpu = content.value("copies_on_gpu", false)};
  for (const json& place : content.at("places")) all.places.push_back(place_of(place));
  return all;
}

void shorten_to(std::uint64_t elements, UnitPlacement& place) {
  std::uint64_t all = place.gpu_elements + place.cpu_elements + place.nvme_elements;
  for (std::uint64_t* const tier :
       {&place.nvme_elements, &place.cpu_elements, &place.gpu_elements}) {
    const std::uint64_t less = std::min(*tier, all - std::min(all, elements));
    *tier -= less;
    all -= less;
  }
}

}  // namespace

SharedPlacement SharedPlacement::of(const RunPlan& plan) {
  return {.places = plan.placement.places,
          .block_slots = plan.input.step.slots(),
          .wave_micro_batches = plan.input.step.waves.of_a_wave,
          .nvme_weights = plan.stripes.chosen(),
          .moves_gradients = plan.memory.gradients.has_value(),
          .copies_on_gpu = plan.memory.gathering.copies == config::HostCopy::kGpu};
}

std::string SharedPlacement::to_text() const {
  json all = json::array();
  for (const UnitPlacement& place : places) all.push_back(json_of(place));
  json content{{"places", std::move(all)},
               {"block_slots", block_slots},
               {"wave_micro_batches", wave_micro_batches},
               {"nvme_weights", nvme_weights},
               {"moves_gradients", moves_gradients}};
  if (copies_on_gpu) content["copies_on_gpu"] = true;  // earlier programs read all other texts
  return content.dump();
}

Result<SharedPlacement> SharedPlacement::parse(const std::string& text) {
  SLUICE_ASSIGN_OR_RETURN(const json content, read_json<json>(text));
  try {
    SharedPlacement all = placement_of(content);
    if (all.to_text() == text) return all;
  } catch (const json::exception&) {  // a value is missing, or has another type
  }
  return Error(ErrorCode::kCorrupt, "the placement of the run cannot be read");
}

Result<PlanOptions> SharedPlacement::options(const ModelLayout& model,
                                             const offload::RankPart& part, bool on_gpu) const {
  if (static_cast<int>(places.size()) != model.units()) {
    return Error(ErrorCode::kInvalidArgument,
                 "the first rank has placed " + std::to_string(places.size()) +
                     " units, but this rank's model has " + std::to_string(model.units()) +
                     ": all ranks must run the same program on the same files");
  }
  PlanOptions options{.on_gpu = on_gpu,
                      .places = places,
                      .block_slots = block_slots,
                      .wave_micro_batches = wave_micro_batches,
                      .ranks = part,
                      .moves_gradients = moves_gradients,
                      .copies_on_gpu = copies_on_gpu,
                      .nvme_weights = nvme_weights};
  for (int unit = 0; unit < model.units(); ++unit)
    shorten_to(offload::shard_of(model.layout(unit).elements, part).elements,
               options.places[static_cast<std::size_t>(unit)]);
  return options;
}

Result<SharedPlacement> share_placement(Communicator& link,
                                        const std::optional<SharedPlacement>& own) {
  SLUICE_ASSIGN_OR_RETURN(const auto texts, link.all_gather_text(own ? own->to_text() : ""));
  return SharedPlacement::parse(texts.front());
}

Result<FirstRankPlan> first_rank_plan(Communicator& link, const config::Config& config,
                                      const LinkProbeOptions& probe, const PlanWithLink& plan) {
  FirstRankPlan of_first;
  std::optional<MeasuredLink> measured;
  if (link.world_size() > 1) {
    SLUICE_ASSIGN_OR_RETURN(measured, probe_link(link, config, probe));
  }
  std::optional<SharedPlacement> own;
  if (link.rank() == 0) {
    SLUICE_ASSIGN_OR_RETURN(of_first.plan, plan(measured));
    own = SharedPlacement::of(*of_first.plan);
  }
  SLUICE_ASSIGN_OR_RETURN(of_first.places, share_placement(link, own));
  return of_first;
}

}  // namespace sluice::engine
