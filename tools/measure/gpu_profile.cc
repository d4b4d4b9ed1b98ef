#include "tools/measure/gpu_profile.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "engine/observe/text_table.h"

namespace sluice::tools {
namespace {

using engine::decimals;
using engine::TextRow;

constexpr std::size_t kNameLength = 72;

bool is_copy(std::string_view name) {
  return name.substr(0, 6) == "Memcpy" || name.substr(0, 6) == "Memset";
}

double seconds_of(std::int64_t ns) { return static_cast<double>(ns) * 1e-9; }

// The time covered by at least one of `spans`.
double covered_seconds(std::vector<std::pair<std::int64_t, std::int64_t>> spans) {
  std::sort(spans.begin(), spans.end());
  std::int64_t covered = 0;
  std::int64_t end = spans.empty() ? 0 : spans.front().first;
  for (const auto& [from, to] : spans) {
    covered += std::max<std::int64_t>(to - std::max(from, end), 0);
    end = std::max(end, to);
  }
  return seconds_of(covered);
}

std::vector<GpuProfile::Kernel> by_time(const std::map<std::string, GpuProfile::Kernel>& kernels) {
  std::vector<GpuProfile::Kernel> sorted;
  sorted.reserve(kernels.size());
  for (const auto& [name, kernel] : kernels) sorted.push_back(kernel);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return sorted;
}

void remove_all(std::string& text, std::string_view part) {
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at))
    text.erase(at, part.size());
}

}  // namespace

std::string short_kernel_name(const std::string& demangled) {
  std::string name = demangled;
  if (name.rfind("void ", 0) == 0) name.erase(0, 5);
  for (const std::string_view part :
       {"(anonymous namespace)::", "at::native::", "sluice::engine::", "sluice::offload::"})
    remove_all(name, part);
  // The argument list follows the last template argument.
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') ++depth;
    if (name[i] == '>') --depth;
    if (name[i] == '(' && depth == 0 && i > 0) {
      name.resize(i);
      break;
    }
  }
  if (name.size() > kNameLength) name = name.substr(0, kNameLength - 3) + "...";
  return name;
}

GpuProfile profile_of(std::span<const GpuEvent> events, int steps) {
  GpuProfile profile;
  profile.steps = steps;
  if (events.empty()) return profile;
  std::int64_t begin = events.front().begin_ns;
  std::int64_t end = events.front().end_ns;
  std::vector<std::pair<std::int64_t, std::int64_t>> busy;
  std::vector<std::pair<std::int64_t, std::int64_t>> copying;
  std::map<std::string, GpuProfile::Kernel> kernels;
  std::map<std::string, GpuProfile::Kernel> copies;
  for (const GpuEvent& event : events) {
    begin = std::min(begin, event.begin_ns);
    end = std::max(end, event.end_ns);
    const bool copy = is_copy(event.name);
    (copy ? copying : busy).emplace_back(event.begin_ns, event.end_ns);
    GpuProfile::Kernel& kernel = (copy ? copies : kernels)[event.name];
    kernel.name = event.name;
    ++kernel.calls;
    kernel.seconds += seconds_of(event.end_ns - event.begin_ns);
  }
  profile.wall_seconds = seconds_of(end - begin);
  profile.busy_seconds = covered_seconds(std::move(busy));
  profile.copying_seconds = covered_seconds(std::move(copying));
  profile.kernels = by_time(kernels);
  profile.copies = by_time(copies);
  return profile;
}

std::string GpuProfile::table(std::size_t shown) const {
  const double per_step = steps > 0 ? 1.0 / steps : 0;
  const double wall = wall_seconds > 0 ? wall_seconds : 1;
  std::vector<TextRow> rows = {{"on the GPU, per step", "calls", "time", "share"}};
  const auto add = [&](const std::string& name, double calls, double seconds) {
    rows.push_back({name, calls > 0 ? decimals(calls * per_step, 1) : "",
                    decimals(1e3 * seconds * per_step, 3) + " ms",
                    decimals(100 * seconds / wall, 1) + "%"});
  };
  add("from the first to the last", 0, wall_seconds);
  add("a kernel runs", 0, busy_seconds);
  add("a copy or a fill runs", 0, copying_seconds);
  Kernel rest{"  the other kernels", 0, 0};
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    if (i < shown) {
      add("  " + short_kernel_name(kernels[i].name), static_cast<double>(kernels[i].calls),
          kernels[i].seconds);
      continue;
    }
    rest.calls += kernels[i].calls;
    rest.seconds += kernels[i].seconds;
  }
  if (rest.calls > 0) add(rest.name, static_cast<double>(rest.calls), rest.seconds);
  for (const Kernel& copy : copies)
    add("  " + copy.name, static_cast<double>(copy.calls), copy.seconds);
  return engine::aligned(rows);
}

std::vector<GpuProfile::Kernel> self_times(std::span<const GpuEvent> calls) {
  std::vector<GpuEvent> sorted(calls.begin(), calls.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const GpuEvent& a, const GpuEvent& b) {
    return std::pair(a.begin_ns, b.end_ns) < std::pair(b.begin_ns, a.end_ns);
  });
  std::map<std::string, GpuProfile::Kernel> times;
  std::vector<const GpuEvent*> open;  // calls in progress, outermost first
  for (const GpuEvent& call : sorted) {
    while (!open.empty() && open.back()->end_ns <= call.begin_ns) open.pop_back();
    const double seconds = seconds_of(call.end_ns - call.begin_ns);
    if (!open.empty()) times[open.back()->name].seconds -= seconds;
    GpuProfile::Kernel& own = times[call.name];
    own.name = call.name;
    ++own.calls;
    own.seconds += seconds;
    open.push_back(&call);
  }
  return by_time(times);
}

std::string operator_table(const std::vector<GpuProfile::Kernel>& operators,
                           const OperatorTable& options) {
  const double per_step = 1.0 / std::max(options.steps, 1);
  std::vector<TextRow> rows = {{"on the CPU, per step", "calls", "time", "share"}};
  const auto add = [&](const std::string& name, std::uint64_t calls, double seconds) {
    rows.push_back(
        {name, decimals(static_cast<double>(calls) * per_step, 1),
         decimals(1e3 * seconds * per_step, 3) + " ms",
         decimals(options.step_s > 0 ? 100 * seconds * per_step / options.step_s : 0, 1) + "%"});
  };
  GpuProfile::Kernel rest{"  the other operators", 0, 0};
  for (std::size_t i = 0; i < operators.size(); ++i) {
    if (i < options.shown) {
      add("  " + operators[i].name, operators[i].calls, operators[i].seconds);
      continue;
    }
    rest.calls += operators[i].calls;
    rest.seconds += operators[i].seconds;
  }
  if (rest.calls > 0) add(rest.name, rest.calls, rest.seconds);
  return engine::aligned(rows);
}

}  // namespace sluice::tools
