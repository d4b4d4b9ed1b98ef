#include <algorithm>
#include <nlohmann/json.hpp>

#include "aio/bounded_json.h"
#include "tools/watch/numbers.h"
#include "tools/watch/run_view.h"

namespace sluice::watch {
namespace {

using Json = nlohmann::ordered_json;

const Json& member(const Json& json, const char* key) {
  static const Json kNothing;
  if (!json.is_object()) return kNothing;
  const auto found = json.find(key);
  return found == json.end() ? kNothing : *found;
}

std::optional<double> number(const Json& json, const char* key) {
  const Json& value = member(json, key);
  if (!value.is_number()) return std::nullopt;
  const auto found = value.get<double>();
  return std::isfinite(found) ? std::optional(found) : std::nullopt;
}

std::optional<std::int64_t> whole(const Json& json, const char* key) {
  constexpr double kMost = 9e15;
  const auto value = number(json, key);
  if (!value || *value < 0 || *value > kMost) return std::nullopt;
  return static_cast<std::int64_t>(*value);
}

std::string text(const Json& json, const char* key) {
  const Json& value = member(json, key);
  return value.is_string() ? value.get<std::string>() : std::string();
}

void take_begin(const Json& event, RunFacts& facts) {
  ++facts.begins;
  facts.end.reset();
  facts.end_reason.clear();
  facts.begin_step = whole(event, "step").value_or(0);
  facts.begin_unix_s = number(event, "unix_s").value_or(0);
  facts.total_steps = whole(event, "steps");
  facts.ranks = whole(event, "ranks");
  const Json& model = member(event, "model");
  const auto parameters = number(model, "parameters");
  facts.model =
      text(model, "family") + (parameters ? ", " + count_text(*parameters) + " parameters" : "");
  facts.gpu = text(member(event, "machine"), "gpu");
  facts.cpu = text(member(event, "machine"), "cpu");
  facts.tiers.clear();
  const Json& tiers = member(event, "tiers");
  for (const char* const name : {"gpu", "cpu", "nvme"})
    if (const Json& tier = member(tiers, name); tier.is_object())
      facts.tiers.push_back({.name = name,
                             .planned_bytes = number(tier, "bytes"),
                             .budget_bytes = number(tier, "budget_bytes"),
                             .used_bytes = {}});
  const Json& plan = member(event, "plan");
  facts.planned_step_s = number(plan, "step_s");
  facts.planned_tokens_per_s = number(plan, "tokens_per_s");
  facts.bottleneck = text(plan, "bottleneck");
  facts.busy.clear();
  const Json& busy = member(plan, "busy_s");
  constexpr std::size_t kMostResources = 16;
  if (busy.is_object() && facts.planned_step_s.value_or(0) > 0)
    for (const auto& [name, seconds] : busy.items())
      if (seconds.is_number() && seconds.get<double>() > 0 && facts.busy.size() < kMostResources)
        facts.busy.emplace_back(name, seconds.get<double>() / *facts.planned_step_s);
}

void take_end(const Json& event, RunFacts& facts) {
  const std::string how = text(event, "how");
  facts.end = how == "completed"     ? RunPhase::kCompleted
              : how == "interrupted" ? RunPhase::kInterrupted
                                     : RunPhase::kFailed;
  facts.end_reason = text(event, "reason");
  facts.end_unix_s = number(event, "unix_s").value_or(0);
}

void take_checkpoint(const Json& event, RunFacts& facts) {
  const auto step = whole(event, "step");
  if (step) facts.last_attempt = std::max(facts.last_attempt.value_or(0), *step);
  if (!member(event, "failed").is_null()) {
    ++facts.failed_checkpoints;
    return;
  }
  ++facts.checkpoints;
  facts.last_checkpoint = step;
  facts.last_checkpoint_unix_s = number(event, "unix_s").value_or(0);
}

EventRow event_row(const Json& event) {
  using Kind = EventRow::Kind;
  const std::string name = text(event, "event");
  EventRow one{.step = whole(event, "step").value_or(0),
               .unix_s = number(event, "unix_s").value_or(0),
               .kind = Kind::kBegin,
               .text = {}};
  if (name == "begin") {
    one.text = one.step > 0 ? "continued" : "began";
  } else if (name == "sample") {
    one.kind = Kind::kSample;
    one.text = text(event, "prompt") + text(event, "text");
    std::ranges::replace_if(
        one.text, [](char c) { return c == '\n' || c == '\t'; }, ' ');
  } else if (name == "early_stop") {
    one.kind = Kind::kEnd;
    one.text = text(event, "text");
  } else if (name == "warning") {
    one.kind = Kind::kWarning;
    one.text = text(event, "text");
  } else if (name == "end") {
    const std::string reason = text(event, "reason");
    one.kind = text(event, "how") == "failed" ? Kind::kBad : Kind::kEnd;
    one.text = text(event, "how") + (reason.empty() ? "" : ": " + reason);
  } else if (!member(event, "failed").is_null()) {
    one.kind = Kind::kBad;
    one.text = "checkpoint not saved: " + text(event, "failed");
  } else {
    one.kind = Kind::kCheckpoint;
    one.text = "checkpoint, " + bytes_text(number(event, "bytes")) + ", saved in " +
               duration_text(number(event, "took_s"));
  }
  return one;
}

std::int64_t configured(const report::RunRecord& record, const char* key) {
  for (const auto& [name, value] : record.config)
    if (name == key) {
      const Json json = json_or_discarded<Json>(value);
      return whole(Json{{"it", json}}, "it").value_or(0);
    }
  return 0;
}

}  // namespace

RunFacts facts_of(const report::RunRecord& record) {
  RunFacts facts;
  const auto take = [&](const std::string& line) {
    const Json event = json_or_discarded<Json>(line);
    const std::string kind = text(event, "event");
    if (kind == "begin") take_begin(event, facts);
    if (kind == "end") take_end(event, facts);
    if (kind == "checkpoint") take_checkpoint(event, facts);
    if (kind == "warning") ++facts.warnings;
    return event;
  };
  for (const std::string& line : record.events.events) take(line);
  // The counts cover only the events that were kept; the last values cover the whole file.
  const RunFacts counted = facts;
  for (const std::string& line : record.events.latest) {
    const Json event = take(line);
    facts.events.push_back(event_row(event));
  }
  facts.begins = counted.begins;
  facts.warnings = counted.warnings;
  facts.checkpoints = counted.checkpoints;
  facts.failed_checkpoints = counted.failed_checkpoints;
  // A module's begin leaves out the number of steps if the caller did not give it.
  if (facts.begins == 0 && configured(record, "run.steps") > 0)
    facts.total_steps = configured(record, "run.steps");
  facts.eval_every = configured(record, "run.eval_every");
  facts.checkpoint_every = configured(record, "run.checkpoint_every");
  return facts;
}

std::optional<double> StepLine::value(std::string_view column) const {
  const std::size_t at = report::metric_column(column);
  if (at >= values.size() || !std::isfinite(values[at])) return std::nullopt;
  return values[at];
}

}  // namespace sluice::watch
