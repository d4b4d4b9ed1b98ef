#include "engine/plan/described_machine.h"

#include <algorithm>
#include <cmath>

#include "engine/budget/memory_plan.h"
#include "engine/observe/text_table.h"
#include "engine/plan/gpu_sheets.h"
#include "engine/preflight/nvme_folders.h"
#include "engine/probe/machine_probe.h"

namespace sluice::engine {
namespace {

constexpr double kGb = 1e9;
// Fraction of a drive's rates when it is read and written at once.
constexpr double kMixedDrive = 0.5;
// Memory traffic of AdamW per element in 16-bit training: state and parameter twice, the gradient
// once.
constexpr double kAdamwBytes = 2.0 * 12 + 2;
// Fraction of the memory's copy rate that AdamW reaches.
constexpr double kAdamwShare = 0.9;

std::string number_text(double value) { return decimals(value, value < 100 ? 1 : 0); }

// The table's rates and the assumed one are for 16-bit products, several times those of fp32.
Status check_rate(const DescribedMachine& given, const config::Config& config) {
  if (given.tflops || !given.describes_gpu() || config.precision != config::Precision::kFp32)
    return {};
  return Error(ErrorCode::kInvalidArgument,
               "this run computes in fp32, but only the 16-bit speed of that GPU is known: give "
               "its fp32 speed without TF32 with --tflops, or set bf16.enabled");
}

Status check_fp8(const DescribedMachine& given, const config::Config& config) {
  if (!config.fp8.enabled || given.gpu == nullptr || given.gpu->products.fp8 > 0) return {};
  return no_fp8(std::string(given.gpu->title));
}

void describe_gpu(const DescribedMachine& given, const ModelLayout& model,
                  const config::Config& config, ProbeReport& report) {
  const GpuSheet* const known = given.gpu;
  const double tflops =
      given.tflops.value_or(known != nullptr ? known->tflops : kAssumedGpu.tflops);
  const SheetRates sheet{
      .tflops = tflops,
      .memory_gb_per_s = given.gpu_memory_gb_per_s.value_or(
          known != nullptr ? known->memory_gb_per_s : kAssumedGpu.memory_gb_per_s),
      .bus_gb_per_s = given.bus_gb_per_s.value_or(known != nullptr ? known->bus_gb_per_s
                                                                   : kAssumedGpu.bus_gb_per_s),
      .products = known != nullptr ? known->products : assumed_products(tflops)};
  describe_by_sheet(sheet, report);
  const bool fp32 = config.precision == config::Precision::kFp32;
  report.gpu = known != nullptr ? std::string(known->title) : "the described GPU";
  if (known == nullptr) {
    const auto assume = [&](bool is_given, const std::string& what) {
      if (!is_given) report.assumed.push_back(what);
    };
    assume(given.gpu_gib.has_value(), "GPU memory " + number_text(kAssumedGpu.memory_gib) + " GiB");
    assume(given.tflops.has_value(), number_text(kAssumedGpu.tflops) + " TFLOP/s");
    assume(given.gpu_memory_gb_per_s.has_value(),
           "GPU memory " + number_text(kAssumedGpu.memory_gb_per_s) + " GB/s");
    assume(given.bus_gb_per_s.has_value(),
           "bus " + number_text(kAssumedGpu.bus_gb_per_s) + " GB/s");
  }
  report.units = estimate_units(model,
                                {.micro_batch = config.batch.micro,
                                 .tokens = config.data.sequence_tokens,
                                 .number_bytes = fp32 ? 4 : 2},
                                estimate_rates(sheet));
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
  // If only one rate is given, it is used for both.
  if (drives.in_bytes_per_s == 0) drives.in_bytes_per_s = drives.out_bytes_per_s;
  if (drives.out_bytes_per_s == 0) drives.out_bytes_per_s = drives.in_bytes_per_s;
  drives.in_both_bytes_per_s = kMixedDrive * drives.in_bytes_per_s;
  drives.out_both_bytes_per_s = kMixedDrive * drives.out_bytes_per_s;
  report.drives_when.estimated = true;
}

}  // namespace

Result<ProbeReport> described_machine(const PlanSubject& subject, const PlanRunOptions& options) {
  const DescribedMachine& given = subject.machine;
  const config::Config& config = subject.config;
  SLUICE_RETURN_IF_ERROR(check_rate(given, config));
  SLUICE_RETURN_IF_ERROR(check_fp8(given, config));
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
                           .units = !given.describes_gpu() && !subject.is_module,
                           .local_ranks = subject.ranks.local_world,
                           .on_progress = options.on_progress}));
  if (given.describes_gpu()) describe_gpu(given, subject.model, config, report);
  describe_host(given, report);
  describe_drives(given, report);
  return report;
}

DescribedMachine with_assumptions(DescribedMachine machine, const config::Config& config,
                                  bool drives_are_here, std::vector<std::string>& assumed) {
  const bool drives_alone =
      !machine.is_elsewhere && machine.describes_gpu() && !machine.describes_drives();
  if (!machine.is_elsewhere && (!drives_alone || drives_are_here)) return machine;
  const auto assume = [&](std::optional<double>& value, double as, const std::string& what) {
    if (value) return;
    value = as;
    assumed.push_back(what);
  };
  // The budget is meant for the described machine, so it is not compared with this one's memory.
  if (!drives_alone) {
    if (!machine.cpu_gib) machine.cpu_gib = config.budget.cpu_gib;
    assume(machine.cpu_gib, kAssumedHost.cpu_gib, "64 GiB of RAM, 56 of them for the run (--ram)");
    assume(machine.ram_gb_per_s, kAssumedHost.ram_gb_per_s,
           "RAM that copies 50 GB/s, read plus written (--ram-gb-per-s)");
  }
  if (nvme_folders(config).empty() && !machine.nvme_gib) return machine;
  if (!machine.nvme_gib) machine.nvme_gib = config.budget.nvme_gib;
  assume(machine.nvme_gib, kAssumedHost.nvme_gib, "900 GiB of space on NVMe (--nvme-gib)");
  if (!machine.describes_drives()) {
    assume(machine.drive_read_gb_per_s, kAssumedHost.drive_read_gb_per_s,
           "a drive that reads 6 GB/s (--drive-read-gb-per-s)");
    assume(machine.drive_write_gb_per_s, kAssumedHost.drive_write_gb_per_s,
           "a drive that sustains writes of 3 GB/s (--drive-write-gb-per-s)");
  }
  return machine;
}

std::vector<std::string> from_here(const DescribedMachine& machine, const config::Config& config,
                                   bool on_gpu) {
  std::vector<std::string> what;
  if (on_gpu && !machine.describes_gpu()) what.emplace_back("the GPU (--gpu)");
  if (!machine.cpu_gib && !config.budget.cpu_gib) what.emplace_back("the size of RAM (--ram)");
  if (!machine.describes_host())
    what.emplace_back("the speed of RAM and of AdamW on the CPU (--ram-gb-per-s)");
  if (nvme_folders(config).empty()) return what;
  if (!machine.nvme_gib && !config.budget.nvme_gib)
    what.emplace_back("the space on the drives (--nvme-gib)");
  if (!machine.describes_drives())
    what.emplace_back("the drives' speed (--drive-read-gb-per-s, --drive-write-gb-per-s)");
  return what;
}

double assumed_tbw(double drive_bytes) {
  constexpr double kTbwOfTb = 600;  // 600 TB per TB of capacity
  constexpr double kTb = 1e12;
  return kTbwOfTb * std::max(std::ceil(drive_bytes / kTb), 1.0);
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
