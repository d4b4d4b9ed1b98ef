#include "engine/probe/quiet_measurement.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "aio/clock.h"

namespace sluice::engine {
namespace {

std::int64_t ns_of(const timeval& time) {
  return 1'000'000'000 * static_cast<std::int64_t>(time.tv_sec) +
         1'000 * static_cast<std::int64_t>(time.tv_usec);
}

// Of all threads that are there now. Nothing where the kernel does not count it.
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
    if (!(file >> ran_ns >> waited_ns)) continue;  // it has just ended
    sum_ns += waited_ns;
    counted = true;
  }
  return !error && counted ? std::optional(sum_ns) : std::nullopt;
}

std::string factor_text(double factor) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", factor);
  return text.data();
}

}  // namespace

CpuUse cpu_use() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return {.wall_ns = SteadyClock().now_ns(),
          .ran_ns = ns_of(usage.ru_utime) + ns_of(usage.ru_stime),
          .waited_ns = waited_for_a_core_ns()};
}

double lost_share(const CpuUse& before, const CpuUse& after, MeasuredWork work) {
  const auto wall = static_cast<double>(std::max<std::int64_t>(after.wall_ns - before.wall_ns, 1));
  const auto ran = static_cast<double>(std::max<std::int64_t>(after.ran_ns - before.ran_ns, 0));
  double lost = 0;
  if (before.waited_ns && after.waited_ns) {
    const auto waited =
        static_cast<double>(std::max<std::int64_t>(*after.waited_ns - *before.waited_ns, 0));
    lost = waited / std::max(ran + waited, wall);
  }
  if (work == MeasuredWork::kComputes) lost = std::max(lost, 1 - ran / wall);
  return lost;
}

std::string QuietMeasurement::disturbance() const {
  if (disturbance_.lost_share > kMostLost) {
    return "other work had " +
           std::to_string(static_cast<int>(100 * disturbance_.lost_share + 0.5)) +
           "% of the processor time";
  }
  if (disturbance_.spread > 1)
    return "its repeats differ by a factor of " + factor_text(disturbance_.spread * most_spread_);
  return {};
}

}  // namespace sluice::engine
