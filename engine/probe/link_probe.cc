#include "engine/probe/link_probe.h"

#include <memory>
#include <utility>
#include <vector>

#include "aio/clock.h"
#include "aio/io_watchdog.h"
#include "aio/machine_info.h"
#include "aio/units.h"
#include "engine/device/gpu.h"
#include "engine/device/host.h"
#include "engine/probe/gpu_probe.h"
#include "engine/probe/link_passes.h"
#include "engine/probe/probe_subjects.h"
#include "engine/probe/speeds_cache.h"

namespace sluice::engine {
namespace {

constexpr int kQueueDepth = 4;
constexpr std::uint64_t kHostBufferBytes = 32 * kMiB;

Result<offload::LinkSpeeds> measure(Communicator& link, bool on_gpu) {
  if (on_gpu) return probe_gpu_link(link);
  const auto world = static_cast<std::uint64_t>(link.world_size());
  std::vector<std::byte> sent(align_up(kHostBufferBytes, world));
  std::vector<std::byte> received(sent.size());
  const SteadyClock clock;
  return time_link(link, {.sent = sent, .received = received}, clock);
}

// Tells the other ranks whether to measure, too.
Status tell(Communicator& link, bool measures) {
  auto told = static_cast<std::byte>(measures);
  return link.broadcast(std::span(&told, 1), /*root=*/0);
}

Result<MeasuredLink> lead(Communicator& link, const config::Config& config,
                          const LinkProbeOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(const auto backend, make_run_backend(config));
  SLUICE_ASSIGN_OR_RETURN(const auto queue,
                          aio::IoQueue::create(*backend, {.queue_depth = kQueueDepth}));
  const aio::IoWatchdog watchdog(
      {queue.get()}, {.limit_ns = static_cast<std::int64_t>(config.run.io_watchdog_s * 1e9)});
  SpeedsCache cache(
      *queue, {.path = options.cache_path, .refresh = options.refresh, .unix_s = options.unix_s});
  const bool on_gpu = uses_cuda(config);
  const LinkSubject subject{.ranks = link.topology(),
                            .gpu = on_gpu ? gpu_identity() : std::nullopt};
  MeasuredLink found{.key = {.what = "link", .of = link_subject(aio::machine_info(), subject)}};
  bool measured = false;
  const auto measure_now = [&]() -> Result<offload::LinkSpeeds> {
    measured = true;
    SLUICE_RETURN_IF_ERROR(tell(link, true));
    return measure(link, on_gpu);
  };
  SLUICE_ASSIGN_OR_RETURN(
      const auto speeds, cache.get<offload::LinkSpeeds>(found.key.what, found.key.of, measure_now));
  if (!measured) SLUICE_RETURN_IF_ERROR(tell(link, false));
  found.speeds = speeds.speeds;
  found.when = {.unix_s = speeds.measured_unix_s, .cached = speeds.cached};
  return found;
}

}  // namespace

Result<MeasuredLink> probe_link(Communicator& link, const config::Config& config,
                                const LinkProbeOptions& options) {
  if (link.rank() == 0) return lead(link, config, options);
  std::byte told{};
  SLUICE_RETURN_IF_ERROR(link.broadcast(std::span(&told, 1), /*root=*/0));
  MeasuredLink found;
  if (told != std::byte{0}) {
    SLUICE_ASSIGN_OR_RETURN(found.speeds, measure(link, uses_cuda(config)));
  }
  return found;
}

}  // namespace sluice::engine
