#include "engine/train/preflight.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <iomanip>
#include <map>
#include <sstream>
#include <utility>

#include "aio/units.h"

namespace sluice::engine {
namespace {

// Kept free of what the machine says it has: for the page cache, other programs, and estimates.
constexpr double kMargin = 0.08;

std::optional<std::uint64_t> first_number(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    std::uint64_t number = 0;
    if (word == key && file >> number) return number;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;  // not there, or "max"
}

// The limit of this process's cgroup and of those above it, less what is in use; version 2.
std::optional<std::uint64_t> cgroup_room() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  std::string group;
  while (std::getline(file, line)) {
    if (line.rfind("0::", 0) == 0) group = line.substr(3);
  }
  std::optional<std::uint64_t> room;
  for (;;) {
    const std::string folder = "/sys/fs/cgroup" + group;
    const auto limit = number_in(folder + "/memory.max");
    const auto used = number_in(folder + "/memory.current");
    if (limit && used) {
      const std::uint64_t here = *limit > *used ? *limit - *used : 0;
      room = std::min(room.value_or(here), here);
    }
    if (group.empty() || group == "/") return room;
    group.resize(group.rfind('/'));
  }
}

std::uint64_t gib_bytes(double gib) { return static_cast<std::uint64_t>(gib * kGiB); }

class Check {
 public:
  Check(const config::Config& config, const MemoryPlan& plan, const MachineMemory& machine,
        aio::FileSystem& files)
      : config_(config), plan_(plan), machine_(machine), files_(files) {}

  Result<PreflightReport> run() {
    SLUICE_RETURN_IF_ERROR(host());
    SLUICE_RETURN_IF_ERROR(nvme());
    memlock();
    report_.table = text_.str();
    return std::move(report_);
  }

 private:
  void line(const std::string& what, std::uint64_t bytes, const std::string& of = "") {
    text_ << "  " << std::left << std::setw(46) << what << std::right << std::setw(10)
          << format_bytes(bytes) << (of.empty() ? "" : "   " + of) << "\n";
  }
  void part(const std::string& tier, const std::vector<MemoryLine>& lines, std::uint64_t total,
            const std::string& of) {
    line(tier, total, of);
    for (const MemoryLine& each : lines)
      if (each.bytes > 0) line("  " + each.what, each.bytes);
  }

  std::optional<std::uint64_t> host_room() const {
    std::optional<std::uint64_t> room = machine_.available_bytes;
    if (machine_.cgroup_bytes)
      room = std::min(room.value_or(*machine_.cgroup_bytes), *machine_.cgroup_bytes);
    return room;
  }

  Status host() {
    const std::uint64_t needed = plan_.host_bytes();
    const std::optional<std::uint64_t> room = host_room();
    std::optional<std::uint64_t> budget;
    if (config_.budget.cpu_gib) {
      budget = gib_bytes(*config_.budget.cpu_gib);
      if (room && *budget > *room) {
        report_.warnings.push_back("budget.cpu_gib asks for " + format_bytes(*budget) +
                                   ", and the machine says that " + format_bytes(*room) +
                                   " are available; it is obeyed");
      }
    } else if (room) {
      budget = static_cast<std::uint64_t>(static_cast<double>(*room) * (1 - kMargin));
    }
    part("host memory", plan_.host, needed,
         budget ? "of " + format_bytes(*budget) +
                      (config_.budget.cpu_gib ? " (budget.cpu_gib)" : " available")
                : "");
    if (!budget || needed <= *budget) return {};
    return Error(ErrorCode::kOutOfMemory, "this run needs " + format_bytes(needed) +
                                              " of host memory, and has " + format_bytes(*budget) +
                                              ": " + format_bytes(needed - *budget) +
                                              " are missing. " + remedy());
  }

  std::string remedy() const {
    const bool trains = plan_.purpose == RunPurpose::kTraining;
    if (trains && config_.zero.offload_optimizer.device != config::OffloadDevice::kNvme)
      return "Put the optimizer state on NVMe (zero_optimization.offload_optimizer.device: "
             "\"nvme\", budget.nvme_paths), or give less of it to memory";
    if (config_.zero.offload_param.device != config::OffloadDevice::kNvme)
      return "Put the parameters on NVMe too (zero_optimization.offload_param.device: \"nvme\")";
    if (trains && !plan_.recompute) return "Recompute activations (placement.recompute: \"on\")";
    return "Take smaller micro-batches (train_micro_batch_size_per_gpu), fewer of them, or a "
           "smaller model";
  }

  // Paths that both stores use need room for both.
  Status nvme() {
    if (plan_.nvme_bytes() == 0) return {};
    part("NVMe", plan_.nvme, plan_.nvme_bytes(), "");
    std::map<std::string, std::uint64_t> needed;
    const auto add = [&](const std::vector<std::string>& paths, std::uint64_t bytes) {
      for (const std::string& path : paths) needed[path] += bytes / paths.size();
    };
    add(config_.param_nvme_paths(), plan_.nvme[0].bytes);
    if (plan_.purpose == RunPurpose::kTraining)
      add(config_.optimizer_nvme_paths(), plan_.nvme[1].bytes);
    if (config_.budget.nvme_gib && plan_.nvme_bytes() > gib_bytes(*config_.budget.nvme_gib)) {
      return Error(ErrorCode::kNoSpace,
                   "this run needs " + format_bytes(plan_.nvme_bytes()) +
                       " on NVMe, more than budget.nvme_gib allows: raise it to " +
                       std::to_string(plan_.nvme_bytes() / kGiB + 1));
    }
    for (const auto& [path, bytes] : needed) {
      const auto free = files_.free_bytes(path);
      if (!free.ok()) continue;  // made later; a full disk is an error then
      line("  on " + path, bytes, "of " + format_bytes(*free) + " free");
      if (bytes > *free) {
        return Error(ErrorCode::kNoSpace, "this run needs " + format_bytes(bytes) + " at " + path +
                                              ", where " + format_bytes(*free) +
                                              " are free: free some space there, or add a path to "
                                              "budget.nvme_paths");
      }
    }
    return {};
  }

  void memlock() {
    const std::uint64_t pinned =
        plan_.params.cache_buffers > 0 && plan_.nvme_bytes() > 0 ? plan_.host_bytes() : 0;
    if (machine_.memlock_bytes && pinned > *machine_.memlock_bytes) {
      report_.warnings.push_back(
          "ulimit -l allows " + format_bytes(*machine_.memlock_bytes) +
          " to be pinned: buffers beyond that work unregistered, at more CPU time per byte");
    }
  }

  const config::Config& config_;
  const MemoryPlan& plan_;
  const MachineMemory& machine_;
  aio::FileSystem& files_;
  std::ostringstream text_;
  PreflightReport report_;
};

}  // namespace

MachineMemory machine_memory() {
  MachineMemory machine;
  const auto available_kib = first_number("/proc/meminfo", "MemAvailable:");
  if (available_kib) machine.available_bytes = *available_kib * kKiB;
  machine.cgroup_bytes = cgroup_room();
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    machine.memlock_bytes = limit.rlim_cur;
  return machine;
}

Result<PreflightReport> preflight(const config::Config& config, const MemoryPlan& plan,
                                  const MachineMemory& machine, aio::FileSystem& files) {
  return Check(config, plan, machine, files).run();
}

}  // namespace sluice::engine
