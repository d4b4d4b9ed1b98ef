#include "engine/profile/flops_profile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>

#include "engine/observe/text_table.h"

namespace sluice::engine {

void PassTotals::add_step(std::span<const PassSpan> spans) {
  for (const PassSpan& span : spans) {
    units_[static_cast<std::size_t>(span.unit)][static_cast<std::size_t>(span.phase)] +=
        static_cast<double>(span.end_ns - span.begin_ns) * 1e-9;
  }
  ++steps_;
}

double PassTotals::seconds(int unit, PassPhase phase) const {
  if (steps_ == 0) return 0;
  return units_[static_cast<std::size_t>(unit)][static_cast<std::size_t>(phase)] / steps_;
}

double PassTotals::seconds(PassPhase phase) const {
  double all = 0;
  for (std::size_t unit = 0; unit < units_.size(); ++unit)
    all += seconds(static_cast<int>(unit), phase);
  return all;
}

namespace {

constexpr std::array<PassPhase, 4> kComputed = {PassPhase::kForward, PassPhase::kLoss,
                                                PassPhase::kRecompute, PassPhase::kBackward};

// "124.44 M": in DeepSpeed's format, with three decimals at most.
std::string amount(double value, const char* unit = "") {
  constexpr std::array<const char*, 6> kPrefixes = {"", "K", "M", "G", "T", "P"};
  std::size_t prefix = 0;
  while (std::fabs(value) >= 1000 && prefix + 1 < kPrefixes.size()) {
    value /= 1000;
    ++prefix;
  }
  const std::string text = decimals(value, prefix == 0 && value == std::floor(value) ? 0 : 2);
  const std::string of = std::string(kPrefixes[prefix]) + unit;
  return of.empty() ? text : text + " " + of;
}

std::string latency(double seconds) {
  if (seconds >= 1) return decimals(seconds, 2) + " s";
  if (seconds >= 1e-3) return decimals(1e3 * seconds, 2) + " ms";
  return decimals(1e6 * seconds, 1) + " us";
}

std::string percent(double part, double whole) {
  return whole > 0 ? decimals(100 * part / whole, 1) + "%" : "";
}

std::string speed(double flops, double seconds) {
  return flops > 0 && seconds > 0 ? amount(flops / seconds, "FLOPS") : "";
}

std::string share_of_limit(const FlopsProfile& profile, double flops, double seconds) {
  return flops > 0 && seconds > 0 ? percent(flops / seconds, profile.limit_flops_per_s) : "";
}

// Forward's fraction of the loss.
double loss_share(const UnitFlops& unit) {
  const double all = trained_flops(unit.of_token);
  return all > 0 ? unit.of_token.forward / all : 0;
}

struct Latencies {
  double forward = 0;
  double backward = 0;  // without recomputation
  double recompute = 0;
};

Latencies latencies(const FlopsProfile& profile, int unit) {
  const PassTotals& passes = profile.passes;
  const double loss = passes.seconds(unit, PassPhase::kLoss);
  const double share = loss_share(profile.units[static_cast<std::size_t>(unit)]);
  return {.forward = passes.seconds(unit, PassPhase::kForward) + share * loss,
          .backward = passes.seconds(unit, PassPhase::kBackward) + (1 - share) * loss,
          .recompute = passes.seconds(unit, PassPhase::kRecompute)};
}

bool recomputes(const FlopsProfile& profile, std::size_t unit) {
  if (profile.units[unit].role != UnitRole::kBlock) return false;
  return unit >= profile.keeps.size() || !profile.keeps[unit];
}

// One row of a table.
struct Part {
  std::string name;
  int units = 0;
  double parameters = 0;
  double macs = 0;     // per micro-batch
  double forward = 0;  // operations per step, like the next two
  double backward = 0;
  double recompute = 0;
  Latencies seconds;

  void add(const Part& other) {
    units += other.units;
    parameters += other.parameters;
    macs += other.macs;
    forward += other.forward;
    backward += other.backward;
    recompute += other.recompute;
    seconds.forward += other.seconds.forward;
    seconds.backward += other.seconds.backward;
    seconds.recompute += other.seconds.recompute;
  }
};

Part part_of(const FlopsProfile& profile, int index) {
  const auto u = static_cast<std::size_t>(index);
  const UnitFlops& unit = profile.units[u];
  const double tokens = profile.tokens();
  return {.name = unit.name,
          .units = 1,
          .parameters = static_cast<double>(unit.parameters),
          .macs = unit.macs_of_token * tokens / static_cast<double>(profile.micro_batches),
          .forward = unit.of_token.forward * tokens,
          .backward = unit.of_token.backward * tokens,
          .recompute = recomputes(profile, u) ? unit.of_token.recompute * tokens : 0,
          .seconds = latencies(profile, index)};
}

std::vector<Part> all_units(const FlopsProfile& profile) {
  std::vector<Part> parts;
  parts.reserve(profile.units.size());
  for (int unit = 0; unit < static_cast<int>(profile.units.size()); ++unit)
    parts.push_back(part_of(profile, unit));
  return parts;
}

std::vector<Part> all_kinds(const FlopsProfile& profile) {
  std::vector<Part> kinds;
  for (int unit = 0; unit < static_cast<int>(profile.units.size()); ++unit) {
    const std::string& name = profile.units[static_cast<std::size_t>(unit)].kind;
    auto found = std::find_if(kinds.begin(), kinds.end(),
                              [&](const Part& kind) { return kind.name == name; });
    if (found == kinds.end()) {
      kinds.push_back({.name = name});
      found = kinds.end() - 1;
    }
    found->add(part_of(profile, unit));
  }
  for (Part& kind : kinds)
    if (kind.units > 1) kind.name += " x " + std::to_string(kind.units);
  return kinds;
}

Part whole(const FlopsProfile& profile) {
  Part model{.name = "model"};
  for (const Part& part : all_units(profile)) model.add(part);
  return model;
}

// The largest parts of a depth: "h.0 7.09 M, h.1 7.09 M".
std::string largest(std::vector<Part> parts, std::int64_t count,
                    const std::function<double(const Part&)>& value,
                    const std::function<std::string(double)>& text) {
  std::stable_sort(parts.begin(), parts.end(),
                   [&](const Part& a, const Part& b) { return value(a) > value(b); });
  if (static_cast<std::int64_t>(parts.size()) > count)
    parts.resize(static_cast<std::size_t>(count));
  std::string list;
  for (const Part& part : parts)
    list += (list.empty() ? "" : ", ") + part.name + " " + text(value(part));
  return list;
}

std::string depth_table(const FlopsProfile& profile, const FlopsTables& tables) {
  std::vector<TextRow> rows = {{"largest by depth", "params", "MACs", "fwd latency"}};
  const std::vector<Part> depths[] = {{whole(profile)}, all_kinds(profile), all_units(profile)};
  const auto plain = [](double value) { return amount(value); };
  for (std::int64_t depth = 0; depth < 3; ++depth) {
    if (tables.module_depth >= 0 && depth > tables.module_depth) break;
    const std::vector<Part>& parts = depths[depth];
    rows.push_back(
        {"  depth " + std::to_string(depth),
         largest(
             parts, tables.top_modules, [](const Part& p) { return p.parameters; }, plain),
         largest(
             parts, tables.top_modules, [](const Part& p) { return p.macs; }, plain),
         largest(
             parts, tables.top_modules, [](const Part& p) { return p.seconds.forward; }, latency)});
  }
  return aligned(rows);
}

std::string figures(const FlopsProfile& profile) {
  const Part model = whole(profile);
  const auto micro_batches = static_cast<double>(profile.micro_batches);
  const double fwd_s = model.seconds.forward;
  const double bwd_s = model.seconds.backward + model.seconds.recompute;
  const double ranks = profile.ranks;
  const double samples = ranks * micro_batches * static_cast<double>(profile.micro_batch);
  const double trained = model.forward + model.backward;
  std::vector<TextRow> rows = {
      {"world size", std::to_string(profile.ranks)},
      {"batch size per GPU", std::to_string(profile.micro_batch)},
      {"micro-batches per step", std::to_string(profile.micro_batches)},
      {"params of the model", amount(model.parameters)},
      {"params per GPU", amount(model.parameters / ranks)},
      {"fwd MACs per GPU and micro-batch, without masking", amount(model.macs, "MACs")},
      {"fwd flops per GPU and micro-batch", amount(model.forward / micro_batches)},
      {"fwd flops of the model per step", amount(ranks * model.forward)},
      {"fwd latency", latency(fwd_s)},
      {"fwd FLOPS per GPU", speed(model.forward, fwd_s)},
      {"bwd latency, with recompute", latency(bwd_s)},
      {"bwd FLOPS per GPU, with recompute", speed(model.backward + model.recompute, bwd_s)},
      {"fwd+bwd FLOPS per GPU", speed(trained + model.recompute, fwd_s + bwd_s)},
      {"update latency", latency(profile.update_s)},
      {"update latency, exposed", latency(profile.update_exposed_s)},
      {"iter latency", latency(profile.step_s)},
      {"FLOPS per GPU, without recompute", speed(trained, profile.step_s)},
      {"samples/second", decimals(profile.step_s > 0 ? samples / profile.step_s : 0, 2)}};
  if (profile.limit_flops_per_s > 0) {
    rows.push_back({"large matrix products, measured", amount(profile.limit_flops_per_s, "FLOPS")});
    rows.push_back(
        {"  share reached by the step", share_of_limit(profile, trained, profile.step_s)});
  }
  return aligned(rows);
}

}  // namespace

double unit_phase_flops(const FlopsProfile& profile, int unit, PassPhase phase) {
  const Part part = part_of(profile, unit);
  const bool is_head = profile.units[static_cast<std::size_t>(unit)].role == UnitRole::kHead;
  switch (phase) {
    case PassPhase::kForward:
      return is_head ? 0 : part.forward;
    case PassPhase::kLoss:
      return is_head ? part.forward + part.backward : 0;
    case PassPhase::kRecompute:
      return part.recompute;
    case PassPhase::kBackward:
      return is_head ? 0 : part.backward;
    case PassPhase::kGradient:
    case PassPhase::kAwaitParams:
    case PassPhase::kAwaitInputs:
      break;
  }
  return 0;
}

double phase_flops(const FlopsProfile& profile, PassPhase phase) {
  double all = 0;
  for (int unit = 0; unit < static_cast<int>(profile.units.size()); ++unit)
    all += unit_phase_flops(profile, unit, phase);
  return all;
}

std::string phase_table(const FlopsProfile& profile) {
  std::vector<TextRow> rows = {{"phase", "time", "share of step", "flops", "speed"}};
  const bool has_limit = profile.limit_flops_per_s > 0;
  if (has_limit) rows.front().emplace_back("share of limit");
  const auto add = [&](const std::string& name, double seconds, double flops) {
    if (seconds <= 0 && flops <= 0) return;
    TextRow row = {name, latency(seconds), percent(seconds, profile.step_s)};
    if (flops > 0) {
      row.push_back(amount(flops));
      row.push_back(speed(flops, seconds));
      if (has_limit) row.push_back(share_of_limit(profile, flops, seconds));
    }
    rows.push_back(std::move(row));
  };
  double known = profile.update_exposed_s;
  for (std::size_t i = 0; i < kPassPhases; ++i) {
    const auto phase = static_cast<PassPhase>(i);
    const double seconds = profile.passes.seconds(phase);
    known += seconds;
    add(phase_name(phase), seconds, phase_flops(profile, phase));
  }
  add("await update", profile.update_exposed_s, 0);
  add("other", std::max(profile.step_s - known, 0.0), 0);
  double all = 0;
  for (const PassPhase phase : kComputed) all += phase_flops(profile, phase);
  add("step", profile.step_s, all);
  const double hidden = std::max(profile.update_s - profile.update_exposed_s, 0.0);
  if (hidden > 0) rows.push_back({"update, overlapped with compute", latency(hidden)});
  return aligned(rows);
}

std::string unit_table(const FlopsProfile& profile, UnitRows which) {
  const std::vector<Part> parts =
      which == UnitRows::kKinds ? all_kinds(profile) : all_units(profile);
  const Part model = whole(profile);
  const bool any_recompute = model.recompute > 0;
  std::vector<TextRow> rows = {{"unit", "params", "", "MACs", "", "fwd", "", "FLOPS"}};
  if (any_recompute) rows.front().insert(rows.front().end(), {"recompute", ""});
  rows.front().insert(rows.front().end(), {"bwd", "", "FLOPS"});
  const auto add = [&](const Part& part) {
    const auto share = [](double of, double all) { return percent(of, all); };
    TextRow row = {part.name,
                   amount(part.parameters),
                   share(part.parameters, model.parameters),
                   amount(part.macs),
                   share(part.macs, model.macs),
                   latency(part.seconds.forward),
                   share(part.seconds.forward, model.seconds.forward),
                   speed(part.forward, part.seconds.forward)};
    if (any_recompute) {
      row.push_back(latency(part.seconds.recompute));
      row.push_back(share(part.seconds.recompute, model.seconds.recompute));
    }
    row.push_back(latency(part.seconds.backward));
    row.push_back(share(part.seconds.backward, model.seconds.backward));
    row.push_back(speed(part.backward, part.seconds.backward));
    rows.push_back(std::move(row));
  };
  for (const Part& part : parts) add(part);
  add(model);
  return aligned(rows);
}

std::string format_flops_profile(const FlopsProfile& profile, const FlopsTables& tables) {
  std::string text = "FLOPs profile of step " + std::to_string(profile.step);
  if (profile.ranks > 1) text += ", on the first of " + std::to_string(profile.ranks) + " ranks";
  text += ": " + std::to_string(profile.micro_batches) + " micro-batch" +
          (profile.micro_batches == 1 ? "" : "es") + " of " + std::to_string(profile.micro_batch) +
          " x " + std::to_string(profile.sequence_tokens) + " tokens\n\n";
  text += figures(profile) + "\n" + phase_table(profile) + "\n" + depth_table(profile, tables);
  if (tables.detailed && tables.module_depth != 0)
    text +=
        "\n" + unit_table(profile, tables.module_depth == 1 ? UnitRows::kKinds : UnitRows::kUnits);
  return text +
         "\nflops: matrix products of one rank's step, with 2 flops per multiply-add, and without "
         "masked attention;\nMACs: forward of one micro-batch, including masked attention, as "
         "DeepSpeed counts them\n";
}

}  // namespace sluice::engine
