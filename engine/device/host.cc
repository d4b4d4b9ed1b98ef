#include "engine/device/host.h"

#include <algorithm>
#include <cmath>

#include "aio/machine_info.h"
#include "aio/make_backend.h"

namespace sluice::engine {
namespace {

aio::BackendKind backend_kind(config::IoBackendChoice choice) {
  switch (choice) {
    case config::IoBackendChoice::kUring:
      return aio::BackendKind::kUring;
    case config::IoBackendChoice::kPosix:
      return aio::BackendKind::kPosix;
    case config::IoBackendChoice::kAuto:
      break;
  }
  return aio::BackendKind::kAuto;
}

}  // namespace

Result<std::unique_ptr<aio::IoBackend>> make_run_backend(const config::Config& config) {
  return aio::make_backend({.kind = backend_kind(config.aio.backend),
                            .threads = static_cast<int>(config.aio.threads),
                            .queue_depth = static_cast<int>(config.aio.queue_depth),
                            .single_submit = config.aio.single_submit});
}

int compute_threads(const config::Config& config) {
  if (config.run.cpu_threads > 0) return static_cast<int>(config.run.cpu_threads);
  return static_cast<int>(std::clamp(std::ceil(aio::usable_cores()), 1.0, 256.0));
}

void share_compute_threads(int world, int local_world, config::Config& config) {
  if (world == 1 || config.run.cpu_threads > 0) return;
  config.run.cpu_threads = std::max(compute_threads(config) / local_world, 1);
}

int worker_threads(const config::Config& config, int local_ranks) {
  const int threads = compute_threads(config);
  if (local_ranks == 1) return threads;
  const auto cores = static_cast<int>(std::ceil(aio::usable_cores()));
  return std::clamp(cores / local_ranks, 1, threads);
}

}  // namespace sluice::engine
