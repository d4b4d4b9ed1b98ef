#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "aio/units.h"
#include "engine/preflight/leftovers.h"
#include "swap/stripe_weights.h"
#include "tools/cli/command.h"
#include "tools/measure/quantile.h"
#include "tools/measure/step_measure.h"
#include "tools/measure/synthetic_run.h"
#include "tools/session/error_text.h"
#include "tools/session/plan_here.h"
#include "tools/session/run_setup.h"
#include "tools/support/interrupt.h"
#include "tools/tune/trial_messages.h"

namespace sluice::tools {
namespace {

// Steps are measured on random tokens, so the length of a real epoch does not matter.
Result<config::Config> config_of(const std::string& text) {
  SLUICE_ASSIGN_OR_RETURN(
      const config::Resolved resolved,
      config::resolve({.run_file = config::Source{.name = "the trial", .text = text},
                       .deepspeed = {},
                       .overrides = {},
                       .facts = {.gpu = {}, .samples_per_epoch = 1}}));
  return resolved.config;
}

std::int64_t elements_on(const engine::MemoryPlan& plan, offload::Tier tier) {
  std::uint64_t elements = 0;
  for (const offload::SubGroup& group : plan.state.optimizer.placement)
    if (group.tier == tier) elements += group.elements;
  return static_cast<std::int64_t>(elements);
}

bool has_params_on_nvme(const engine::MemoryPlan& plan) {
  return std::any_of(plan.nvme.begin(), plan.nvme.end(), [](const engine::MemoryLine& line) {
    return line.use == engine::MemoryUse::kParameters && line.bytes > 0;
  });
}

PlanFacts facts_of(const engine::RunPlan& plan) {
  const engine::MemoryPlan& memory = plan.memory;
  PlanFacts facts{
      .cuda = memory.cuda,
      .state_on_nvme = elements_on(memory, offload::Tier::kNvme) > 0,
      .params_on_nvme = has_params_on_nvme(memory),
      .prefetch_units = memory.fetching.prefetch_units,
      .wave_micro_batches = memory.waves.of_a_wave,
      .swap_buffers = memory.state.optimizer.swap.buffers,
      .record_elements = static_cast<std::int64_t>(memory.state.optimizer.record_elements)};
  const auto parameters = static_cast<double>(std::max<std::uint64_t>(plan.parameters, 1));
  const auto share = [&](offload::Tier tier) {
    return static_cast<double>(elements_on(memory, tier)) / parameters;
  };
  facts.gpu_fraction = share(offload::Tier::kGpu);
  facts.cpu_fraction = share(offload::Tier::kCpu);
  facts.nvme_fraction = share(offload::Tier::kNvme);
  facts.units = static_cast<std::int64_t>(plan.input.units.size());
  for (const offload::UnitCost& unit : plan.input.units)
    facts.largest_unit_elements =
        std::max(facts.largest_unit_elements, static_cast<std::int64_t>(unit.elements));
  return facts;
}

// Identifies the behaviour of a run in a short text.
std::string run_id_of(const config::Config& config, const engine::MemoryPlan& plan) {
  std::ostringstream text;
  text << config.batch.micro << ' ' << config.batch.accumulation << ' '
       << config.placement.overlap_update << ' ' << plan.fetching.prefetch_units << ' '
       << plan.fetching.block_slots << ' ' << plan.params.options.read_ahead << ' '
       << plan.state.optimizer.record_elements << ' ';
  for (const bool keeps : plan.activations.kept) text << keeps;
  if (!plan.cuda) text << static_cast<int>(config.placement.recompute);  // a CPU's plan ignores it
  text << swap::to_text(plan.state.optimizer.store.weights);
  for (const auto* const tier : {&plan.host, &plan.gpu, &plan.nvme})
    for (const engine::MemoryLine& line : *tier) text << ' ' << line.what << '=' << line.bytes;
  for (const offload::SubGroup& group : plan.state.optimizer.placement)
    text << ' ' << group.elements << offload::to_string(group.tier);
  std::ostringstream id;
  id << std::hex << std::hash<std::string>()(text.str());
  return id.str();
}

std::string what_is_missing(const engine::RunPlan& plan) {
  std::string text;
  const auto add = [&](const char* tier, std::uint64_t bytes) {
    if (bytes > 0)
      text += (text.empty() ? "" : ", ") + format_bytes(bytes) + " " + tier + " missing";
  };
  add("of the GPU", plan.placement.missing.gpu);
  add("of RAM", plan.placement.missing.cpu);
  add("on the drives", plan.placement.missing.nvme);
  if (plan.placement.writes_too_much) return "writes more than budget.nvme_tb_per_day allows";
  return "does not fit: " + (text.empty() ? std::string("by the plan") : text);
}

Result<TrialPlan> make_plan(const PlanRequest& request) {
  SLUICE_ASSIGN_OR_RETURN(const config::Config config, config_of(request.config));
  SLUICE_RETURN_IF_ERROR(engine::clear_leftovers(config));
  SLUICE_ASSIGN_OR_RETURN(const engine::RunPlan plan,
                          plan_here(config, {.machine = {}, .of_a_series = true}));
  TrialPlan answer{.forecast = {.step_s = plan.placement.prediction.step_s,
                                .refusal = {},
                                .run_id = run_id_of(config, plan.memory)},
                   .facts = facts_of(plan)};
  if (!plan.placement.fits) answer.forecast.refusal = what_is_missing(plan);
  return answer;
}

// The standard error of the median, assuming normally distributed values. If steps are long there
// is only one value, and such steps vary little.
double median_error(const std::vector<double>& values) {
  constexpr double kOfOne = 0.02;
  constexpr double kOfQuartiles = 0.93;
  if (values.size() == 1) return kOfOne * values.front();
  return kOfQuartiles * (quantile(values, 0.75) - quantile(values, 0.25)) /
         std::sqrt(static_cast<double>(values.size()));
}

Result<Trial> measure_run(const MeasureRequest& request, const Interrupt& interrupt) {
  SLUICE_ASSIGN_OR_RETURN(config::Config config, config_of(request.config));
  SLUICE_ASSIGN_OR_RETURN(const SyntheticTokens tokens, use_synthetic_tokens(config));
  SLUICE_ASSIGN_OR_RETURN(const auto run, set_up_run(config, std::nullopt, {.of_a_series = true}));
  const StepMeasurement measured = measure_steps(
      *run, {.warmup = request.warmup, .steps = request.steps, .seconds = request.seconds},
      interrupt, [](std::string_view phase, int done, int total, double seconds) {
        std::cerr << phase << " " << done << " of " << total << ": " << seconds << " s\n";
      });
  if (measured.interrupted || measured.steps.empty())
    return Error(ErrorCode::kCancelled, "interrupted");
  std::vector<double> seconds;
  seconds.reserve(measured.steps.size());
  for (const MeasuredStep& step : measured.steps) seconds.push_back(step.seconds);
  const double median_s = quantile(seconds, 0.5);
  return Trial{.failure = {},
               .step_s = median_s,
               .error_s = median_error(seconds),
               .tokens_per_s = static_cast<double>(run->tokens_per_step()) / median_s,
               .gpu_bytes = measured.gpu_peak_bytes,
               .host_bytes = measured.memory.peak_resident_bytes};
}

Trial failed(const std::string& why) { return Trial{.failure = why.empty() ? "failed" : why}; }

Trial measure(const MeasureRequest& request, const Interrupt& interrupt) {
  const auto failed_by = [](const Error& error) {
    return failed((error.code() == ErrorCode::kOutOfMemory ? "out of memory: " : "") +
                  error.message());
  };
  try {
    auto trial = measure_run(request, interrupt);
    return trial.ok() ? *std::move(trial) : failed_by(trial.error());
  } catch (const std::exception& error) {
    return failed_by(error_of(error));
  }
}

std::string answer_to(const std::string& line, const Interrupt& interrupt) {
  const auto request = parse_request(line);
  if (!request.ok()) return to_line(failed(request.error().message()));
  if (const auto* const wanted = std::get_if<MeasureRequest>(&*request))
    return to_line(measure(*wanted, interrupt));
  try {
    const auto plan = make_plan(std::get<PlanRequest>(*request));
    if (plan.ok()) return to_line(*plan);
    return to_line(
        TrialPlan{.forecast = {.refusal = plan.error().message(), .run_id = {}}, .facts = {}});
  } catch (const std::exception& error) {
    return to_line(
        TrialPlan{.forecast = {.refusal = error_of(error).message(), .run_id = {}}, .facts = {}});
  }
}

// Makes this process end with its parent, and lets the kernel kill it first when memory runs out.
void belong_to_the_parent() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::ofstream("/proc/self/oom_score_adj") << 1000;
}

bool send_all(const std::string& text) {
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t count = send(STDIN_FILENO, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno != EINTR) return false;
    if (count > 0) sent += static_cast<std::size_t>(count);
  }
  return true;
}

Result<int> run() {
  belong_to_the_parent();
  const Interrupt interrupt;
  std::string line;
  while (!interrupt.requested() && std::getline(std::cin, line))
    if (!send_all(answer_to(line, interrupt) + "\n")) break;
  return interrupt.requested() ? kInterruptedExitCode : 0;
}

}  // namespace

Command add_trial_command(CLI::App& sluice) {
  sluice.add_subcommand("trial", "Run by `sluice tune`: answers its requests, line by line")
      ->group("");  // hidden
  return [](aio::IoWatchdog& /*watchdog*/) { return run(); };
}

}  // namespace sluice::tools
