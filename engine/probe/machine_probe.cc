#include "engine/probe/machine_probe.h"

#include <ATen/Parallel.h>
#include <torch/version.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "aio/io_watchdog.h"
#include "aio/log.h"
#include "aio/machine_info.h"
#include "aio/units.h"
#include "engine/budget/configured_model.h"
#include "engine/budget/memory_plan.h"
#include "engine/device/gpu.h"
#include "engine/device/host.h"
#include "engine/families/families.h"
#include "engine/families/make_model.h"
#include "engine/model/ops/fp8_products.h"
#include "engine/model/ops/products.h"
#include "engine/model/torch_types.h"
#include "engine/preflight/machine_facts.h"
#include "engine/preflight/nvme_folders.h"
#include "engine/preflight/shared_file_systems.h"
#include "engine/probe/drive_probe.h"
#include "engine/probe/gpu_probe.h"
#include "engine/probe/host_probe.h"
#include "engine/probe/probe_report.h"
#include "engine/probe/probe_subjects.h"
#include "engine/probe/speeds_cache.h"
#include "engine/probe/unit_timer.h"

namespace sluice::engine {
namespace {

struct RunTypes {
  offload::StateForm form;
  offload::GradType grad_type;
  const char* name;
};

RunTypes types_of(const config::Config& config) {
  const offload::ElementType moments = config.optimizer.moments == config::MomentType::kBf16
                                           ? offload::ElementType::kBf16
                                           : offload::ElementType::kFp32;
  switch (config.precision) {
    case config::Precision::kBf16:
      return {{offload::ParamForm::kSplit, moments}, offload::GradType::kBf16, "bf16"};
    case config::Precision::kFp16:
      return {{offload::ParamForm::kFp32AndFp16, moments}, offload::GradType::kFp16, "fp16"};
    case config::Precision::kFp32:
      break;
  }
  return {{offload::ParamForm::kFp32, moments}, offload::GradType::kFp32, "fp32"};
}

template <typename Speeds>
ProbedWhen when(const SpeedsCache::Found<Speeds>& found) {
  return {.unix_s = found.measured_unix_s,
          .cached = found.cached,
          .disturbed = !found.disturbance.empty()};
}

class MachineProbe {
 public:
  MachineProbe(const config::Config& config, const MachineProbeOptions& options,
               aio::IoBackend& backend, aio::IoQueue& cache_queue)
      : config_(config),
        options_(options),
        backend_(backend),
        cache_(cache_queue, {.path = options.cache_path,
                             .refresh = options.refresh,
                             .unix_s = options.unix_s,
                             .disturbed_max_age_s = options.disturbed_max_age_s}),
        types_(types_of(config)),
        machine_(aio::machine_info()),
        cores_(options.cores > 0 ? options.cores : aio::usable_cores()),
        facts_(machine_facts(config)),
        gpu_(uses_cuda(config) ? gpu_identity() : std::nullopt),
        paths_(nvme_folders(config)),
        steps_(static_cast<double>(kStepsWithoutPaths + paths_.size() + (paths_.size() > 1))) {}

  Result<ProbeReport> run() {
    SLUICE_RETURN_IF_ERROR(require_nvme_folders(config_, backend_.files()));
    report_.cache_path = options_.cache_path;
    report_.of_a_series = options_.disturbed_max_age_s > 0;
    SLUICE_RETURN_IF_ERROR(host());
    SLUICE_RETURN_IF_ERROR(drives());
    SLUICE_RETURN_IF_ERROR(gpu());
    if (options_.units) SLUICE_RETURN_IF_ERROR(units());
    return std::move(report_);
  }

 private:
  static constexpr std::size_t kStepsWithoutPaths = 3;

  std::function<void(double)> step(const std::string& what) {
    const double before = steps_begun_++;
    // Progress does not decrease if a measurement is repeated.
    return [this, what, before](double fraction) {
      furthest_ = std::max(furthest_, (before + fraction) / steps_);
      if (options_.on_progress) options_.on_progress(what, furthest_);
    };
  }

  // Returns the values from the file, or measures them, if possible while the machine is quiet.
  // `measure` gets the object that records the spread of its passes.
  template <typename Speeds>
  Result<SpeedsCache::Found<Speeds>> quietly(
      const std::string& name, MeasuredKey key, MeasuredWork work,
      const std::function<Result<Speeds>(PassSpread*)>& measure, const Speeds& empty = {}) {
    if (cores_ < machine_.cores) key.of["cores"] = cores_text(cores_);
    const int threads = work == MeasuredWork::kComputes ? host_threads() : 1;
    QuietMeasurement quiet({.work = work,
                            .own_wait = own_wait_share(threads, cores_),
                            .read = options_.cpu_use,
                            .most_spread = options_.most_spread});
    const std::function<Result<Speeds>()> once = [&] { return measure(quiet.spread()); };
    SLUICE_ASSIGN_OR_RETURN(auto found,
                            cache_.get<Speeds>(
                                key.what, key.of, [&] { return quiet.measure<Speeds>(once); },
                                [&] { return quiet.disturbance(); }, empty));
    if (!found.disturbance.empty() && found.cached)
      report_.disturbed_before.push_back(name);
    else if (!found.disturbance.empty())
      report_.disturbances.push_back(name + ": " + found.disturbance);
    report_.measured.push_back(std::move(key));
    return found;
  }

  int host_threads() const {
    return worker_threads(config_, options_.local_ranks) * options_.local_ranks;
  }

  Status host() {
    const int threads = host_threads();
    report_.cpu = machine_.cpu + ", " + std::to_string(threads) + " threads";
    const std::string crowded = crowding(threads, cores_);
    if (!crowded.empty()) log::warning_once("threads", crowded);
    if (!options_.host) return {};
    const std::string name = "memory and cores";
    const auto tell = step(name);
    HostProbeOptions options{
        .form = types_.form, .grad_type = types_.grad_type, .isa = offload::best_isa()};
    std::unique_ptr<aio::Executor> executor;  // kept alive: its threads are counted afterwards
    SLUICE_ASSIGN_OR_RETURN(
        const auto found,
        quietly<HostSpeeds>(name, {.what = "host", .of = host_subject(machine_, threads, options)},
                            MeasuredWork::kComputes, [&](PassSpread* spread) -> Result<HostSpeeds> {
                              tell(0);
                              const auto free = host_room(config_.budget, facts_);
                              options.memory_bytes =
                                  host_probe_bytes(aio::last_level_cache_bytes(),
                                                   free.value_or(aio::available_ram_bytes()));
                              options.spread = spread;
                              if (!executor) {
                                SLUICE_ASSIGN_OR_RETURN(executor, aio::make_executor(threads));
                              }
                              return probe_host(*executor, options);
                            }));
    report_.speeds.host_copy_bytes_per_s = found.speeds.copy_bytes_per_s;
    report_.speeds.cpu_adamw_elements_per_s = found.speeds.adamw_elements_per_s;
    report_.host_when = when(found);
    return {};
  }

  // With many paths each one is measured for a shorter time, since a few seconds are enough for
  // all.
  DriveProbeOptions drive_options(std::vector<std::string> folders) const {
    constexpr double kPathsInFull = 2;
    constexpr double kLeastPart = 0.2;
    DriveProbeOptions options{.folders = std::move(folders),
                              .block_bytes = static_cast<std::uint64_t>(config_.aio.block_bytes),
                              .queue_depth = static_cast<int>(config_.aio.queue_depth),
                              .io_watchdog_s = config_.run.io_watchdog_s};
    if (options.folders.size() > 1) return options;
    const double part =
        std::clamp(kPathsInFull / static_cast<double>(paths_.size()), kLeastPart, 1.0);
    options.fill_seconds *= part;
    options.seconds *= part;
    return options;
  }

  Result<SpeedsCache::Found<offload::DuplexRates>> rates_of(const DriveProbeOptions& options,
                                                            const std::string& what) {
    const auto tell = step(what);
    const DriveAccess access{.backend = std::string(backend_.name()),
                             .threads = static_cast<int>(config_.aio.threads),
                             .single_submit = config_.aio.single_submit};
    return quietly<offload::DuplexRates>(
        what, {.what = "drives", .of = drive_subject(machine_, options, access)},
        MeasuredWork::kWaits, [&](PassSpread* spread) {
          DriveProbeOptions watched = options;
          watched.spread = spread;
          return probe_drives(backend_, watched, tell);
        });
  }

  Status drives() {
    for (const std::string& path : paths_) {
      SLUICE_ASSIGN_OR_RETURN(const auto found, rates_of(drive_options({path}), path));
      report_.paths.push_back({.path = path, .rates = found.speeds, .when = when(found)});
    }
    if (paths_.empty()) return {};
    if (paths_.size() == 1) {
      report_.speeds.drives = report_.paths[0].rates;
      report_.drives_when = report_.paths[0].when;
      return {};
    }
    weigh();
    DriveProbeOptions together = drive_options(paths_);
    for (const ProbedPath& path : report_.paths) together.weights.push_back(path.weight);
    SLUICE_ASSIGN_OR_RETURN(const auto found, rates_of(together, "all NVMe paths together"));
    report_.speeds.drives = found.speeds;
    report_.drives_when = when(found);
    return {};
  }

  // DeepSpeed's keys give each store one path, so those paths are not striped, and need no weights.
  void weigh() {
    std::vector<std::string> drives;
    drives.reserve(report_.paths.size());
    for (const ProbedPath& path : report_.paths) drives.push_back(device_number_of(path.path));
    count_sharers(drives, report_.paths);
    if (config_.budget.nvme_paths.size() == report_.paths.size())
      weigh_paths(config_.placement.nvme_weights, report_);
  }

  Status gpu() {
    const auto tell = step("the GPU");
    if (!gpu_) return {};
    report_.gpu = gpu_->name;
    SLUICE_RETURN_IF_ERROR(check_fp8_of_gpu(config_));
    GpuProbeOptions options{.form = types_.form,
                            .grad_type = types_.grad_type,
                            .type = offload::compute_type(types_.form.param)};
    const auto room = gpu_room(config_.budget, facts_);
    if (room) options.memory_limit_bytes = std::min(options.memory_limit_bytes, *room / 2);
    const auto host = host_room(config_.budget, facts_);
    options.pin_trial_bytes =
        std::min(options.pin_trial_bytes, host.value_or(aio::available_ram_bytes()) / 4);
    SLUICE_ASSIGN_OR_RETURN(const auto found,
                            quietly<GpuSpeeds>("the GPU",
                                               {.what = "gpu",
                                                .of = gpu_subject(machine_, *gpu_, TORCH_VERSION,
                                                                  types_.form, types_.grad_type)},
                                               MeasuredWork::kWaits, [&](PassSpread* spread) {
                                                 options.spread = spread;
                                                 return probe_gpu(options, tell);
                                               }));
    report_.speeds.bus = found.speeds.bus;
    report_.pin = found.speeds.pin;
    report_.speeds.gpu_copy_bytes_per_s = found.speeds.copy_bytes_per_s;
    report_.speeds.gpu_adamw_elements_per_s = found.speeds.adamw_elements_per_s;
    report_.speeds.gpu_matmul_flops_per_s = found.speeds.matmul_flops_per_s;
    report_.gpu_when = when(found);
    return {};
  }

  // A suffix of the CPU's name if its 16-bit products are slow, for instance because its
  // instruction set is restricted.
  std::string products_of_cpu() const {
    const auto type = scalar_type(offload::compute_type(types_.form.param));
    return has_fast_products(type) ? "" : ", 16-bit products from fp32 copies";
  }

  UnitSubject unit_subject_of(const ModelOptions& model) const {
    return {.shape = model.shape,
            .lora = model.lora,
            .padded_vocab = model.padded_vocab,
            .pass = {.micro_batch = config_.batch.micro,
                     .tokens = config_.data.sequence_tokens,
                     .number_bytes = offload::param_bytes_per_element(types_.form.param)},
            .dtype = std::string(types_.name) + (model.fp8.enabled ? " with products in fp8" : ""),
            .device = gpu_ ? gpu_->name + ", " + gpu_->driver : report_.cpu + products_of_cpu(),
            .torch_version = TORCH_VERSION,
            .deterministic = config_.run.deterministic};
  }

  Status units() {
    const std::string name = "the model's units";
    const auto tell = step(name);
    const ModelOptions model_of = configured_model(config_, uses_cuda(config_));
    SLUICE_RETURN_IF_ERROR(validate(model_of.shape));
    const auto made = make_model(model_of);
    const Model& model = *made;
    const UnitSubject subject = unit_subject_of(model_of);
    report_.units_of = "hidden " + std::to_string(subject.shape.hidden) + ", micro-batch " +
                       std::to_string(subject.pass.micro_batch) + " x " +
                       std::to_string(subject.pass.tokens) + " tokens, " + subject.dtype;
    UnitTimerOptions options{.device = gpu_ ? at::kCUDA : at::kCPU,
                             .type = offload::compute_type(types_.form.param),
                             .micro_batch = subject.pass.micro_batch,
                             .tokens = subject.pass.tokens,
                             .deterministic = subject.deterministic,
                             .memory_limit_bytes = gpu_ ? gpu_room(config_.budget, facts_)
                                                        : host_room(config_.budget, facts_)};
    const std::uint64_t needed = unit_timer_bytes(model.layout(), options);
    if (options.memory_limit_bytes && needed > *options.memory_limit_bytes) {
      log::info("the units of this model are not timed, because that needs " +
                format_bytes(needed) +
                (gpu_ ? " of the GPU's memory, but only " : " of RAM, and ") +
                format_bytes(*options.memory_limit_bytes) +
                " may be used; their times are estimated from their operations");
      report_.units =
          estimate_units(model.layout(), subject.pass, rates_for_estimates(config_, report_));
      report_.units_when = {.unix_s = options_.unix_s, .estimated = true};
      return {};
    }
    at::set_num_threads(compute_threads(config_));
    SLUICE_ASSIGN_OR_RETURN(const auto found,
                            quietly<UnitTimes>(
                                name, {.what = "units", .of = unit_subject(subject)},
                                gpu_ ? MeasuredWork::kWaits : MeasuredWork::kComputes,
                                [&](PassSpread* spread) {
                                  options.spread = spread;
                                  return time_units(model, options, tell);
                                },
                                UnitTimes(model.layout())));
    report_.units = found.speeds;
    report_.units_when = when(found);
    return {};
  }

  const config::Config& config_;
  const MachineProbeOptions& options_;
  aio::IoBackend& backend_;
  SpeedsCache cache_;
  const RunTypes types_;
  const aio::MachineInfo machine_;
  const double cores_;
  const MachineFacts facts_;
  const std::optional<GpuIdentity> gpu_;
  const std::vector<std::string> paths_;
  const double steps_;
  double steps_begun_ = 0;
  double furthest_ = 0;
  ProbeReport report_;
};

constexpr int kCacheDepth = 4;

// The cache is in the user's home folder, perhaps on a network file system.
aio::IoWatchdog::Options watchdog_options(const config::Config& config) {
  return {.limit_ns = static_cast<std::int64_t>(config.run.io_watchdog_s * 1e9)};
}

}  // namespace

Status forget_measurements(const config::Config& config, const ProbeReport& report,
                           std::int64_t now_unix_s) {
  SLUICE_ASSIGN_OR_RETURN(const auto backend, make_run_backend(config));
  SLUICE_ASSIGN_OR_RETURN(const auto queue,
                          aio::IoQueue::create(*backend, {.queue_depth = kCacheDepth}));
  const aio::IoWatchdog watchdog({queue.get()}, watchdog_options(config));
  return SpeedsCache(*queue, {.path = report.cache_path, .unix_s = now_unix_s})
      .forget(report.measured);
}

Error no_fp8(const std::string& gpu) {
  return {ErrorCode::kInvalidArgument,
          "fp8.enabled needs a GPU of compute capability 8.9 or later (RTX 40, Ada, Hopper), and " +
              gpu + " is older: leave fp8.enabled out"};
}

Status check_fp8_of_gpu(const config::Config& config) {
  if (!config.fp8.enabled || !uses_cuda(config) || has_fp8(at::Device(at::kCUDA, 0))) return {};
  const auto gpu = gpu_identity();
  return no_fp8(gpu ? gpu->name : "this GPU");
}

EstimateRates rates_for_estimates(const config::Config& config, const ProbeReport& report) {
  // Half of the measured rate, because estimated units run a module's own passes, or are unusually
  // large.
  constexpr double kOfModel = 0.5;
  constexpr double kFlopsPerThread = 2e10;
  constexpr double kLeastCopy = 1e9;
  if (!report.gpu.empty()) {
    return {.product_flops_per_s = kOfModel * report.speeds.gpu_matmul_flops_per_s,
            .attention_flops_per_s = 0,
            .kernel_bytes_per_s = report.speeds.gpu_copy_bytes_per_s};
  }
  return {.product_flops_per_s = kOfModel * kFlopsPerThread * compute_threads(config),
          .attention_flops_per_s = 0,
          .kernel_bytes_per_s = std::max(report.speeds.host_copy_bytes_per_s, kLeastCopy)};
}

Result<ProbeReport> probe_machine(const config::Config& config,
                                  const MachineProbeOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(const auto backend, make_run_backend(config));
  SLUICE_ASSIGN_OR_RETURN(const auto queue,
                          aio::IoQueue::create(*backend, {.queue_depth = kCacheDepth}));
  const aio::IoWatchdog watchdog({queue.get()}, watchdog_options(config));
  return MachineProbe(config, options, *backend, *queue).run();
}

}  // namespace sluice::engine
