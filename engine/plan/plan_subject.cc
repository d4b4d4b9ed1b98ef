#include "engine/plan/plan_subject.h"

#include <utility>

#include "engine/budget/configured_model.h"
#include "engine/budget/gradient_plan.h"
#include "engine/device/gpu.h"
#include "engine/device/host.h"
#include "engine/families/families.h"
#include "engine/plan/described_machine.h"
#include "engine/preflight/nvme_folders.h"

namespace sluice::engine {
namespace {

// Adds a path for a drive that is only described.
config::Config with_described_drive(config::Config config, const DescribedMachine& machine) {
  if (machine.nvme_gib && config.optimizer_nvme_paths().empty() &&
      config.param_nvme_paths().empty())
    config.budget.nvme_paths = {"nvme"};
  return config;
}

bool drives_are_here(const config::Config& config, aio::FileSystem& files) {
  const Status found = require_nvme_folders(config, files);
  return found.ok() || found.error().code() != ErrorCode::kNotFound;
}

Status check_drive(const config::Config& config, const DescribedMachine& machine) {
  if (!machine.nvme_gib || machine.describes_drives() || !nvme_folders(config).empty()) return {};
  return Error(
      ErrorCode::kInvalidArgument,
      "--nvme-gib describes a drive of unknown speed: give --drive-read-gb-per-s and "
      "--drive-write-gb-per-s too, or a folder on a drive of this machine (budget.nvme_paths)");
}

}  // namespace

Status check_fp8(const config::Config& config, const ModelLayout& model, bool is_module) {
  if (!config.fp8.enabled) return {};
  for (const int unit : model.first_of_kinds())
    if (model.kind(unit).fp8_work(/*number_bytes=*/2).flops.forward > 0) return {};
  return Error(
      ErrorCode::kInvalidArgument,
      is_module ? "fp8.enabled is only for models that Sluice's own units compute: PyTorch "
                  "computes this module"
                : "fp8.enabled changes nothing in this model: it is for dense matrices of blocks "
                  "whose widths are multiples of " +
                      std::to_string(kFp8Multiple) + "; leave it out");
}

Result<PlanSubject> plan_subject(const config::Config& given, const PlanRunOptions& asked,
                                 aio::FileSystem& files) {
  std::vector<std::string> assumed;
  const DescribedMachine machine =
      with_assumptions(asked.machine, given, drives_are_here(given, files), assumed);
  SLUICE_RETURN_IF_ERROR(check_drive(given, machine));
  config::Config config = with_described_drive(given, machine);
  share_compute_threads(asked.ranks.world, asked.ranks.local_world, config);
  if (!machine.describes_gpu()) SLUICE_RETURN_IF_ERROR(check_device(config));
  const bool on_gpu = machine.describes_gpu() || uses_cuda(config);
  const bool is_module = asked.described != nullptr;
  if (is_module) {
    config.placement.wave_micro_batches = 1;
  } else {
    SLUICE_RETURN_IF_ERROR(validate(config.model.shape()));
  }
  ModelLayout model = is_module ? asked.described->layout : configured_layout(config, on_gpu);
  SLUICE_RETURN_IF_ERROR(check_fp8(config, model, is_module));
  if (asked.first_stays_acquired) model.keep_acquired(0);
  SLUICE_RETURN_IF_ERROR(check_gradients_on_nvme(
      {.config = config, .model = model, .on_gpu = on_gpu, .names = asked.names}));
  return PlanSubject{.config = std::move(config),
                     .machine = machine,
                     .assumed = std::move(assumed),
                     .on_gpu = on_gpu,
                     .model = std::move(model),
                     .ranks = asked.ranks,
                     .is_module = is_module,
                     .names = asked.names,
                     .outside = asked.outside};
}

}  // namespace sluice::engine
