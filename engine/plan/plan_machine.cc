#include "engine/plan/plan_machine.h"

#include "aio/units.h"
#include "engine/plan/described_machine.h"
#include "engine/probe/machine_probe.h"

namespace sluice::engine {
namespace {

using offload::TierBytes;

std::uint64_t bytes_of_gib(double gib) { return static_cast<std::uint64_t>(gib * kGiB); }

bool is_described(const DescribedMachine& machine) {
  return machine.describes_gpu() || machine.describes_host() || machine.describes_drives();
}

Result<ProbeReport> report_on(const PlanSubject& subject, const PlanRunOptions& asked) {
  if (is_described(subject.machine)) return described_machine(subject, asked);
  return probe_machine(subject.config, {.cache_path = asked.cache_path,
                                        .refresh = asked.refresh,
                                        .unix_s = asked.unix_s,
                                        .disturbed_max_age_s = asked.disturbed_max_age_s,
                                        .units = !subject.is_module,
                                        .local_ranks = subject.ranks.local_world,
                                        .on_progress = asked.on_progress});
}

// Estimates unit times, because this program cannot run a module's passes.
void estimate_described(const PlanSubject& subject, ProbeReport& report) {
  const config::Config& config = subject.config;
  report.units =
      estimate_units(subject.model,
                     {.micro_batch = config.batch.micro,
                      .tokens = config.data.sequence_tokens,
                      .number_bytes = config.precision == config::Precision::kFp32 ? 4 : 2},
                     rates_for_estimates(config, report));
  report.units_when.estimated = true;
}

void set_link(const PlanSubject& subject, const PlanRunOptions& asked, ProbeReport& report) {
  if (subject.ranks.is_alone()) return;
  if (asked.link) {
    report.speeds.link = asked.link->speeds;
    report.link_when = asked.link->when;
    report.measured.push_back(asked.link->key);
    return;
  }
  report.speeds.link = described_link(subject.machine, subject.on_gpu);
  report.link_when.estimated = true;
}

// The room of a whole host.
std::uint64_t nvme_room(const PlanMachine& machine, const PlanSubject& subject) {
  if (machine.stripes.paths.empty()) return 0;
  if (subject.machine.nvme_gib) return bytes_of_gib(*subject.machine.nvme_gib);
  if (subject.config.budget.nvme_gib) return bytes_of_gib(*subject.config.budget.nvme_gib);
  return machine.stripes.room();
}

}  // namespace

Result<PlanMachine> plan_machine(const PlanSubject& subject, const PlanRunOptions& asked,
                                 aio::FileSystem& files) {
  const DescribedMachine& described = subject.machine;
  PlanMachine machine{.facts = machine_facts(subject.config)};
  ProbeReport& report = machine.report;
  SLUICE_ASSIGN_OR_RETURN(report, report_on(subject, asked));
  // A described GPU's units were already estimated.
  if (subject.is_module && !described.describes_gpu()) estimate_described(subject, report);
  report.assumed.insert(report.assumed.end(), subject.assumed.begin(), subject.assumed.end());
  if (is_described(described))
    report.from_here = from_here(described, subject.config, subject.on_gpu);
  set_link(subject, asked, report);
  machine.stripes = nvme_stripes(subject.config, report, described.nvme_gib ? nullptr : &files,
                                 asked.file_system_of);
  return machine;
}

TierBytes budget_on(const PlanMachine& machine, const PlanSubject& subject) {
  constexpr std::uint64_t kUnknown = std::uint64_t{1} << 46;  // not reported by the machine
  const config::Budget given = planned_budget(subject.config.budget, subject.machine);
  const offload::RankGroup& ranks = subject.ranks;
  TierBytes budget{.cpu = ranks.share_of(host_room(given, machine.facts).value_or(kUnknown)),
                   .nvme = ranks.share_of(nvme_room(machine, subject))};
  if (subject.on_gpu) {
    const std::uint64_t gpu = gpu_room(given, machine.facts).value_or(kUnknown);
    budget.gpu = static_cast<std::uint64_t>(static_cast<double>(gpu) * (1 - kGpuSlack));
  }
  return budget;
}

TierBytes available_on(const PlanMachine& machine, const PlanSubject& subject) {
  const DescribedMachine& described = subject.machine;
  std::uint64_t host = host_free(machine.facts).value_or(0);
  if (described.cpu_gib) host = bytes_of_gib(*described.cpu_gib);
  return {.gpu = described.describes_gpu() ? bytes_of_gib(described.gpu_memory_gib())
                                           : gpu_free(machine.facts).value_or(0),
          .cpu = subject.ranks.share_of(host)};
}

}  // namespace sluice::engine
