#include "engine/probe/timed_passes.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "aio/clock.h"
#include "engine/observe/text_table.h"

namespace sluice::engine {
namespace {

std::int64_t ns_of(const timeval& time) {
  return 1'000'000'000 * static_cast<std::int64_t>(time.tv_sec) +
         1'000 * static_cast<std::int64_t>(time.tv_usec);
}

// Sum over all current threads; nullopt if the kernel does not count it.
std::optional<std::int64_t> waited_for_a_core_ns() {
  std::error_code error;
  std::filesystem::directory_iterator tasks("/proc/self/task", error);
  if (error) return std::nullopt;
  std::int64_t sum_ns = 0;
  bool counted = false;
  for (const auto end = std::filesystem::directory_iterator(); tasks != end;
       tasks.increment(error)) {
    std::ifstream file(tasks->path() / "schedstat");
    std::int64_t ran_ns = 0;
    std::int64_t waited_ns = 0;
    if (!(file >> ran_ns >> waited_ns)) continue;  // the thread has just ended
    sum_ns += waited_ns;
    counted = true;
  }
  return !error && counted ? std::optional(sum_ns) : std::nullopt;
}

}  // namespace

CpuUse cpu_use() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return {.wall_ns = SteadyClock().now_ns(),
          .ran_ns = ns_of(usage.ru_utime) + ns_of(usage.ru_stime),
          .waited_ns = waited_for_a_core_ns()};
}

double own_wait_share(int threads, double cores) {
  return std::max(0.0, 1 - cores / std::max(threads, 1));
}

std::string cores_text(double cores) { return decimals(cores, cores == std::floor(cores) ? 0 : 2); }

std::string crowding(int threads, double cores) {
  if (threads <= std::ceil(cores)) return {};
  return "this run has more threads than cores, so threads wait for each other: run.cpu_threads "
         "is " +
         std::to_string(threads) + ", and CPU affinity and quotas allow this process " +
         cores_text(cores);
}

double lost_share(const CpuUse& before, const CpuUse& after, MeasuredWork work, double own_wait) {
  const auto wall = static_cast<double>(std::max<std::int64_t>(after.wall_ns - before.wall_ns, 1));
  const auto ran = static_cast<double>(std::max<std::int64_t>(after.ran_ns - before.ran_ns, 0));
  double lost = 0;
  if (before.waited_ns && after.waited_ns) {
    const auto waited =
        static_cast<double>(std::max<std::int64_t>(*after.waited_ns - *before.waited_ns, 0));
    lost = waited / std::max(ran + waited, wall);
  }
  if (work == MeasuredWork::kComputes) lost = std::max(lost, 1 - ran / wall);
  // Relative to what the cores can give: 1 - lost should be 1 - own_wait.
  return std::max(0.0, (lost - own_wait) / (1 - own_wait));
}

std::string QuietMeasurement::disturbance() const {
  if (disturbance_.lost_share > kMostLost) {
    return "other work used " + std::to_string(std::lround(100 * disturbance_.lost_share)) +
           "% of the processor time";
  }
  if (disturbance_.spread > 1)
    return "repeated measurements differ by a factor of " +
           decimals(disturbance_.spread * options_.most_spread, 1);
  return {};
}

}  // namespace sluice::engine
