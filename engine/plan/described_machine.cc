#include "engine/plan/described_machine.h"

#include "engine/budget/memory_plan.h"
#include "engine/probe/machine_probe.h"

namespace sluice::engine {
namespace {

constexpr double kGb = 1e9;
// Of a bus that carries both directions at once, the rate of each; as measured on PCIe 4 and 5.
constexpr double kBothWays = 0.9;
// Of a drive that is read and written at once.
constexpr double kMixedDrive = 0.5;
// How much memory AdamW moves for an element of 16-bit training: state and parameter twice, the
// gradient once.
constexpr double kAdamwBytes = 2.0 * 12 + 2;
// The share of the memory's copy rate that AdamW reaches.
constexpr double kAdamwShare = 0.9;

void describe_gpu(const DescribedMachine& given, const ModelLayout& model,
                  const config::Config& config, ProbeReport& report) {
  offload::MachineSpeeds& speeds = report.speeds;
  const double bus = given.bus_gb_per_s.value_or(kAssumedGpu.bus_gb_per_s) * kGb;
  speeds.bus = {.in_bytes_per_s = bus,
                .out_bytes_per_s = bus,
                .in_both_bytes_per_s = kBothWays * bus,
                .out_both_bytes_per_s = kBothWays * bus};
  speeds.gpu_copy_bytes_per_s =
      given.gpu_memory_gb_per_s.value_or(kAssumedGpu.memory_gb_per_s) * kGb;
  speeds.gpu_adamw_elements_per_s = kAdamwShare * speeds.gpu_copy_bytes_per_s / kAdamwBytes;
  speeds.gpu_matmul_flops_per_s = given.tflops.value_or(kAssumedGpu.tflops) * 1e12;
  const bool fp32 = config.precision == config::Precision::kFp32;
  report.gpu = "a GPU as described";
  report.units = estimate_units(model,
                                {.micro_batch = config.batch.micro,
                                 .tokens = config.data.sequence_tokens,
                                 .number_bytes = fp32 ? 4 : 2},
                                {.matmul_flops_per_s = speeds.gpu_matmul_flops_per_s,
                                 .copy_bytes_per_s = speeds.gpu_copy_bytes_per_s});
  report.gpu_when.estimated = report.units_when.estimated = true;
}

void describe_host(const DescribedMachine& given, ProbeReport& report) {
  if (!given.describes_host()) return;
  report.speeds.host_copy_bytes_per_s = *given.ram_gb_per_s * kGb;
  report.speeds.cpu_adamw_elements_per_s =
      kAdamwShare * report.speeds.host_copy_bytes_per_s / kAdamwBytes;
  report.host_when.estimated = true;
}

void describe_drives(const DescribedMachine& given, ProbeReport& report) {
  offload::DuplexRates& drives = report.speeds.drives;
  if (!given.describes_drives()) return;
  if (given.drive_read_gb_per_s) drives.in_bytes_per_s = *given.drive_read_gb_per_s * kGb;
  if (given.drive_write_gb_per_s) drives.out_bytes_per_s = *given.drive_write_gb_per_s * kGb;
  // Either one alone gives the other too.
  if (drives.in_bytes_per_s == 0) drives.in_bytes_per_s = drives.out_bytes_per_s;
  if (drives.out_bytes_per_s == 0) drives.out_bytes_per_s = drives.in_bytes_per_s;
  drives.in_both_bytes_per_s = kMixedDrive * drives.in_bytes_per_s;
  drives.out_both_bytes_per_s = kMixedDrive * drives.out_bytes_per_s;
  report.drives_when.estimated = true;
}

}  // namespace

Result<ProbeReport> described_machine(const config::Config& config, const ModelLayout& model,
                                      const PlanRunOptions& options) {
  const DescribedMachine& given = options.machine;
  config::Config here = config;
  if (given.describes_gpu()) here.run.device = config::Device::kCpu;
  if (given.describes_drives()) {
    here.budget.nvme_paths.clear();
    here.zero.offload_param.nvme_path.clear();
    here.zero.offload_optimizer.nvme_path.clear();
  }
  SLUICE_ASSIGN_OR_RETURN(
      ProbeReport report,
      probe_machine(here, {.cache_path = options.cache_path,
                           .refresh = options.refresh,
                           .unix_s = options.unix_s,
                           .host = !given.describes_host(),
                           .units = !given.describes_gpu() && options.described == nullptr,
                           .local_ranks = options.ranks.local_world,
                           .on_progress = options.on_progress}));
  if (given.describes_gpu()) describe_gpu(given, model, config, report);
  describe_host(given, report);
  describe_drives(given, report);
  return report;
}

offload::LinkSpeeds described_link(const DescribedMachine& given, bool on_gpu) {
  const AssumedLink assumed = on_gpu ? kAssumedLink : kAssumedHostLink;
  const double rate = given.link_gb_per_s.value_or(assumed.gb_per_s) * kGb;
  const double latency_s = given.link_latency_us.value_or(assumed.latency_us) * 1e-6;
  return {.gather_bytes_per_s = rate,
          .exchange_bytes_per_s = rate,
          .latency_s = latency_s,
          .network_bytes_per_s = given.network_gb_per_s.value_or(assumed.network_gb_per_s) * kGb,
          .network_latency_s = latency_s,
          .bus_together = {}};
}

}  // namespace sluice::engine
