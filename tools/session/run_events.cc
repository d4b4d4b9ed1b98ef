#include "tools/session/run_events.h"

#include <nlohmann/json.hpp>

#include "aio/bounded_json.h"
#include "aio/log.h"
#include "aio/machine_info.h"
#include "aio/text.h"
#include "tools/support/version.h"

namespace sluice::tools {
namespace {

using Json = nlohmann::ordered_json;
using engine::EventLog;

Json tiers_json(const std::vector<TierUsage>& tiers) {
  Json json = Json::object();
  for (const TierUsage& tier : tiers) {
    Json one = {{"bytes", tier.bytes}, {"parts", Json::object()}};
    if (tier.budget_bytes) one["budget_bytes"] = *tier.budget_bytes;
    for (const engine::MemoryLine& line : tier.lines)
      if (line.bytes > 0) one["parts"][line.what] = line.bytes;
    json[tier.tier] = std::move(one);
  }
  return json;
}

// Defaults are left out, since config.json has them.
Json config_json(const config::Resolved& resolved) {
  Json json = Json::array();
  for (const config::KeyReport& key : resolved.reports) {
    if (key.outcome == config::Outcome::kDefault && !key.was_auto) continue;
    const bool derived = key.outcome == config::Outcome::kDerived || key.was_auto;
    json.push_back({{"path", key.path},
                    {"value", key.value},
                    {"outcome", key.outcome == config::Outcome::kIgnored ? "ignored"
                                : derived                                ? "derived"
                                                                         : "given"},
                    {"reason", key.reason},
                    {"source", key.source}});
  }
  return json;
}

Json machine_json(const PlannedStep* planned) {
  const aio::MachineInfo machine = aio::machine_info();
  Json json = {{"cpu", machine.cpu},
               {"cores", machine.cores},
               {"ram_bytes", machine.ram_bytes},
               {"kernel", machine.kernel}};
  if (planned == nullptr || planned->machine.gpu.empty()) return json;
  json["gpu"] = planned->machine.gpu;
  json["product_flops_per_s"] = planned->machine.speeds.gpu_matmul_flops_per_s;
  return json;
}

Json flops_json(const engine::Flops& flops) {
  return {{"forward", flops.forward}, {"backward", flops.backward}, {"recompute", flops.recompute}};
}

double seconds(std::int64_t ns) { return static_cast<double>(ns) * 1e-9; }

}  // namespace

RunEvents::RunEvents() {
  log::set_listener([shared = shared_](log::Level level, std::string_view text) {
    if (level != log::Level::kInfo) shared->log_warning(text);
  });
}

RunEvents::~RunEvents() { log::set_listener({}); }

void RunEvents::Shared::log_warning(std::string_view warning) {
  constexpr std::size_t kMostEarly = 100;
  const std::lock_guard lock(mutex);
  if (has_begun)
    log.note("warning", step, EventLog::member("text", warning));
  else if (early.size() < kMostEarly)
    early.emplace_back(warning);
}

// `object`: a JSON object; its members become the event's.
void RunEvents::note(std::string_view kind, std::int64_t step, const std::string& object) {
  shared_->log.note(kind, step, std::string_view(object).substr(1, object.size() - 2));
}

void RunEvents::begin(const std::string& path, const Begin& begin) {
  const std::int64_t step = begin.step;
  Json json = {{"schema", engine::kEventsSchema}};
  if (begin.steps > 0) json["steps"] = begin.steps;
  if (begin.tokens_per_step > 0) json["tokens_per_step"] = begin.tokens_per_step;
  json.update({{"ranks", begin.ranks},
               {"build", version_text("sluice")},
               {"machine", machine_json(begin.planned)},
               {"model",
                {{"family", begin.family},
                 {"parameters", begin.parameters},
                 {"trained_parameters", begin.trained_parameters}}},
               {"tiers", tiers_json(begin.tiers)}});
  if (begin.flops_per_token) json["model"]["flops_per_token"] = flops_json(*begin.flops_per_token);
  if (begin.planned != nullptr) {
    const auto parsed = [](const std::string& text) { return json_or_discarded<Json>(text); };
    json["plan"] = parsed(begin.planned->prediction);
    if (!begin.planned->what_if.empty()) json["what_if"] = parsed(begin.planned->what_if);
  }
  json["config"] = config_json(begin.resolved);
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->step = step;
    note("begin", step, json_line(json));
    shared_->has_begun = true;
    for (const std::string& text : shared_->early)
      shared_->log.note("warning", step, EventLog::member("text", text));
    shared_->early.clear();
  }
  Status there = shared_->log.open(path, begin.resolved.config.run.log_part_bytes());
  if (there.ok()) there = shared_->log.flush();
  if (!there.ok()) log::warning("events are kept in memory: " + there.error().message());
}

void RunEvents::after_step(std::int64_t step) {
  shared_->step = step;
  static_cast<void>(shared_->log.flush());  // on failure it waits for the next flush
}

void RunEvents::checkpoint(const engine::SavedCheckpoint& saved) {
  Json json = saved.status.ok() ? Json{{"bytes", saved.bytes},
                                       {"stopped_s", seconds(saved.stopped_ns)},
                                       {"took_s", seconds(saved.took_ns)}}
                                : Json{{"failed", saved.status.error().message()}};
  if (saved.status.ok() && saved.in_place_bytes > 0) json["in_place_bytes"] = saved.in_place_bytes;
  note("checkpoint", saved.step, json_line(json));
  static_cast<void>(shared_->log.flush());
}

// Readers skip events of more than 8 KiB. With what is escaped, both texts stay below that.
void RunEvents::sample(std::int64_t step, const SampleText& sample) {
  constexpr std::size_t kMostBytes = 1800;
  const auto cut = [](std::string text) {
    if (text.size() > kMostBytes) text = text.substr(0, kMostBytes) + "...";
    for (char& letter : text)
      if (static_cast<unsigned char>(letter) < ' ' && letter != '\n' && letter != '\t')
        letter = ' ';
    return text;
  };
  const Json json = {{"prompt", cut(sample.prompt)},
                     {"text", cut(sample.text)},
                     {"tokens", sample.tokens},
                     {"ended", sample.ended}};
  note("sample", step, json_line(json));
}

void RunEvents::early_stop(const engine::StoredEvaluations& made, std::string_view text) {
  const Json json = {{"evaluations", made.without_improvement},
                     {"lowest_loss", made.lowest_loss ? Json(*made.lowest_loss) : Json()},
                     {"lowest_step", made.lowest_step},
                     {"text", text}};
  note("early_stop", shared_->step, json_line(json));
}

void RunEvents::end(std::string_view how, std::string_view reason) {
  Json json = {{"how", how}};
  if (!reason.empty()) json["reason"] = reason;
  note("end", shared_->step, json_line(json));
  static_cast<void>(shared_->log.flush());
}

}  // namespace sluice::tools
