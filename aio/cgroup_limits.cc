#include "aio/cgroup_limits.h"

#include <algorithm>
#include <initializer_list>
#include <sstream>
#include <string_view>
#include <vector>

#include "aio/mount_table.h"

namespace sluice::aio {
namespace {

// Version 1 writes "no limit" as the largest number of whole pages.
constexpr std::uint64_t kNoLimitBytes = std::uint64_t{1} << 62;

std::optional<std::uint64_t> number_in(const std::string& path) {
  std::istringstream text(read_text(path));
  std::uint64_t number = 0;
  if (text >> number) return number;
  return std::nullopt;  // missing, or "max"
}

// The value of the first of these keys that memory.stat has; 0 if it has none.
std::uint64_t stat_of(const std::string& stat, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    std::istringstream lines(stat);
    std::string name;
    for (std::uint64_t value = 0; lines >> name >> value;)
      if (name == key) return value;
  }
  return 0;
}

// One hierarchy: its mount point, and the path of this process's group below it.
struct Hierarchy {
  std::string mount_point;
  std::string group;  // "" or "/a/b"
  bool version2 = false;
};

// /proc/self/cgroup names groups from the root of the hierarchy (or namespace). The mount may show
// only a part of it, as in containers without their own namespace.
std::string below_mount(const std::string& group, const std::string& mount_root) {
  if (group.find("/..") != std::string::npos || !is_below(group, mount_root)) return "";
  const std::string below = mount_root == "/" ? group : group.substr(mount_root.size());
  return below == "/" ? "" : below;
}

// This process's group: in version 2 ("0::/a"), or for a controller of version 1
// ("5:memory,cpu:/a").
// version 1.
std::optional<std::string> group_of(const std::string& proc_cgroup, const std::string& controller,
                                    bool version2) {
  std::istringstream lines(proc_cgroup);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool fits = version2 ? line.compare(0, 3, "0::") == 0
                               : controllers.find("," + controller + ",") != std::string::npos;
    if (fits) return line.substr(second + 1);
  }
  return std::nullopt;
}

std::vector<Hierarchy> hierarchies(const std::string& root, const std::string& controller) {
  const std::string groups = read_text(root + "/proc/self/cgroup");
  std::vector<Hierarchy> found;
  for (const Mount& mount : parse_mount_table(read_text(root + "/proc/self/mountinfo"))) {
    const bool version2 = mount.type == "cgroup2";
    const bool version1 = mount.type == "cgroup" && super_option(mount, controller);
    if (!version1 && !version2) continue;
    const auto group = group_of(groups, controller, version2);
    if (!group) continue;
    found.push_back({.mount_point = root + mount.mount_point,
                     .group = below_mount(*group, mount.root),
                     .version2 = version2});
  }
  return found;
}

// Visits this process's own group and those above it, as long as `goes_on` is true for each one
// above.
template <typename LookAt, typename GoesOn>
void on_the_way_to_the_root(Hierarchy it, const LookAt& look_at, const GoesOn& goes_on) {
  look_at(it.mount_point + it.group);
  while (!it.group.empty()) {
    it.group.resize(it.group.rfind('/'));
    const std::string folder = it.mount_point + it.group;
    if (!goes_on(folder)) break;
    look_at(folder);
  }
}

// Adds the limits in the folder of one group.
void look_at_memory(const std::string& folder, bool version2, std::vector<CgroupMemory>& found) {
  const auto usage = number_in(folder + (version2 ? "/memory.current" : "/memory.usage_in_bytes"));
  if (!usage) return;
  const std::string stat = read_text(folder + "/memory.stat");
  // The same sum as in the kernel's MemAvailable: the file cache, mapped or not, and caches that
  // can shrink.
  const std::uint64_t reclaimable = stat_of(stat, {"total_inactive_file", "inactive_file"}) +
                                    stat_of(stat, {"total_active_file", "active_file"}) +
                                    (version2 ? stat_of(stat, {"slab_reclaimable"}) : 0);
  const std::uint64_t used = *usage - std::min(*usage, reclaimable);
  const auto add = [&](std::optional<std::uint64_t> limit) {
    if (limit && *limit < kNoLimitBytes)
      found.push_back({.limit_bytes = *limit, .used_bytes = used});
  };
  if (version2) {
    // Above memory.high no process is killed, but every allocation waits for reclaim.
    for (const char* name : {"/memory.max", "/memory.high"}) add(number_in(folder + name));
    return;
  }
  add(number_in(folder + "/memory.limit_in_bytes"));
  // Limits of groups above that are not visible here, as in a container.
  const std::uint64_t above = stat_of(stat, {"hierarchical_memory_limit"});
  if (above > 0) add(above);
}

// "150000 100000" or "max 100000" in version 2; -1 means no quota in version 1.
std::optional<double> cores_of(const std::string& folder, bool version2) {
  std::istringstream text(version2 ? read_text(folder + "/cpu.max")
                                   : read_text(folder + "/cpu.cfs_quota_us") + " " +
                                         read_text(folder + "/cpu.cfs_period_us"));
  double quota_us = 0;
  double period_us = 0;
  if (text >> quota_us >> period_us && quota_us > 0 && period_us > 0) return quota_us / period_us;
  return std::nullopt;
}

}  // namespace

std::optional<CgroupMemory> cgroup_memory(const std::string& root) {
  std::vector<CgroupMemory> found;
  for (const Hierarchy& it : hierarchies(root, "memory")) {
    on_the_way_to_the_root(
        it, [&](const std::string& folder) { look_at_memory(folder, it.version2, found); },
        // Without this setting a version 1 group does not count the groups below it.
        [&](const std::string& folder) {
          return it.version2 || number_in(folder + "/memory.use_hierarchy") != 0;
        });
  }
  if (found.empty()) return std::nullopt;
  return *std::min_element(
      found.begin(), found.end(),
      [](const CgroupMemory& a, const CgroupMemory& b) { return a.room_bytes() < b.room_bytes(); });
}

std::optional<double> cgroup_cores(const std::string& root) {
  std::optional<double> least;
  for (const Hierarchy& it : hierarchies(root, "cpu")) {
    on_the_way_to_the_root(
        it,
        [&](const std::string& folder) {
          const auto cores = cores_of(folder, it.version2);
          if (cores && (!least || *cores < *least)) least = cores;
        },
        [](const std::string& /*folder*/) { return true; });
  }
  return least;
}

}  // namespace sluice::aio
