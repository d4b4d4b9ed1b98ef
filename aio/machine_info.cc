#include "aio/machine_info.h"

#include <sched.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <memory>
#include <set>
#include <sstream>
#include <thread>

#include "aio/cgroup_limits.h"
#include "aio/mount_table.h"
#include "aio/units.h"

namespace sluice::aio {
namespace {

// The value of "key : value" or "key: value" in /proc/cpuinfo and /proc/meminfo.
std::string value_of(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::size_t start = line.find_first_not_of(" \t", colon + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

std::uint64_t meminfo_bytes(const char* key) {
  return std::strtoull(value_of(read_text("/proc/meminfo"), key).c_str(), nullptr, 10) * 1024;
}

int cores_to_run_on() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

MachineInfo machine_info() {
  MachineInfo info;
  info.cpu = value_of(read_text("/proc/cpuinfo"), "model name");
  if (info.cpu.empty()) info.cpu = "unknown";
  info.cores = cores_to_run_on();
  info.ram_bytes = meminfo_bytes("MemTotal");
  utsname names{};
  info.kernel = uname(&names) == 0 ? std::string(names.sysname) + " " + names.release : "unknown";
  return info;
}

double usable_cores() {
  const double cores = std::max(1, cores_to_run_on());
  return std::min(cores, cgroup_cores().value_or(cores));
}

std::uint64_t available_ram_bytes() {
  const std::uint64_t of_machine = meminfo_bytes("MemAvailable");
  const auto of_cgroup = cgroup_memory();
  return of_cgroup ? std::min(of_machine, of_cgroup->room_bytes()) : of_machine;
}

std::uint64_t last_level_cache_bytes() {
  constexpr int kMostCpus = 4096;
  std::set<std::string> seen;  // each of the CPUs that share a cache reports it
  std::uint64_t bytes = 0;
  for (int cpu = 0; cpu < kMostCpus; ++cpu) {
    const std::string folder =
        "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cache/index3/";
    const std::string shared_by = read_text(folder + "shared_cpu_list");
    if (shared_by.empty()) break;
    if (!seen.insert(shared_by).second) continue;
    std::string size = read_text(folder + "size");  // "32768K"
    while (!size.empty() && std::isspace(static_cast<unsigned char>(size.back())) != 0)
      size.pop_back();
    const auto parsed = parse_bytes(size);
    if (parsed.ok()) bytes += *parsed;
  }
  return bytes;
}

MountInfo find_mount(const std::string& mountinfo, const std::string& device_number,
                     const std::string& path) {
  MountInfo best{
      .file_system = "unknown", .device = "unknown", .mount_point = "", .device_number = ""};
  bool best_has_number = false;
  for (const Mount& mount : parse_mount_table(mountinfo)) {
    if (!is_below(path, mount.mount_point)) continue;
    const bool has_number = mount.device_number == device_number;
    const bool longer = mount.mount_point.size() >= best.mount_point.size();
    if ((has_number && !best_has_number) || (has_number == best_has_number && longer)) {
      best = {.file_system = mount.type,
              .device = mount.source,
              .mount_point = mount.mount_point,
              .device_number = ""};
      best_has_number = has_number;
    }
  }
  return best;
}

MountInfo mount_info(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return find_mount("", "", "");
  const std::unique_ptr<char, decltype(&std::free)> absolute(realpath(path.c_str(), nullptr),
                                                             &std::free);
  const std::string number =
      std::to_string(major(status.st_dev)) + ":" + std::to_string(minor(status.st_dev));
  MountInfo mount =
      find_mount(read_text("/proc/self/mountinfo"), number, absolute ? absolute.get() : path);
  mount.device_number = number;
  return mount;
}

}  // namespace sluice::aio
