#include "engine/preflight/preflight.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "aio/copy_on_write.h"
#include "aio/memory_files.h"
#include "aio/units.h"
#include "engine/observe/text_table.h"
#include "engine/preflight/memory_remedies.h"
#include "engine/preflight/nearest_existing_ancestor.h"
#include "swap/stripe_weights.h"

namespace sluice::engine {
namespace {

std::string gib_text(std::uint64_t bytes) {
  return decimals(std::ceil(static_cast<double>(bytes) / kGiB * 10) / 10, 1);
}

class Check {
 public:
  Check(const config::Config& config, const MemoryPlan& plan, const MachineFacts& facts,
        aio::FileSystem& files, const FileSystemOf& file_system_of, const StorageOf& storage)
      : config_(config),
        plan_(plan),
        facts_(facts),
        files_(files),
        file_system_of_(file_system_of),
        on_paths_(plan.nvme_paths()) {
    for (const PathBytes& it : on_paths_)
      storage_[it.path] = storage(nearest_existing_ancestor(files_, it.path));
  }

  PreflightReport run() {
    report_.warnings = budget_warnings(config_.budget, facts_);
    judge(host());
    locked();
    judge(gpu());
    judge(nvme());
    judge(io());
    report_.notes = plan_.notes;
    report_.table = text_.str();
    return std::move(report_);
  }

 private:
  // One kind of memory that a run uses.
  struct Pool {
    std::string name;        // "host memory"
    std::string budget_key;  // "budget.cpu_gib"
    std::optional<double> budget_gib;
    std::optional<std::uint64_t> free_bytes;
    std::optional<std::uint64_t> room_bytes;
    std::string limit;     // ", within a limit of 4.0G": the source of free_bytes
    int sharing = 1;       // number of ranks that share the budget of budget_key
    bool is_host = false;  // its kOther lines are the program and buffers
  };

  void judge(const Status& status) {
    if (report_.verdict.ok()) report_.verdict = status;
  }

  void line(const std::string& what, const std::string& value, const std::string& of = "") {
    text_ << "  " << std::left << std::setw(46) << what << std::right << std::setw(10) << value
          << (of.empty() ? "" : "   " + of) << "\n";
  }
  void part(const std::string& tier, const std::vector<MemoryLine>& lines, std::uint64_t total,
            const std::string& of) {
    line(tier, format_bytes(total), of);
    for (const MemoryLine& each : lines)
      if (each.bytes > 0) line("  " + each.what, format_bytes(each.bytes));
  }

  Status check(const Pool& pool, const std::vector<MemoryLine>& lines, std::uint64_t needed) {
    part(pool.name, lines, needed,
         pool.room_bytes
             ? "of " + format_bytes(*pool.room_bytes) +
                   (pool.budget_gib ? " (" + pool.budget_key + ")" : " available" + pool.limit)
             : "");
    if (!pool.room_bytes || needed <= *pool.room_bytes) return {};
    const std::uint64_t missing = needed - *pool.room_bytes;
    const std::uint64_t fixed = bytes_of(lines, MemoryUse::kOther);
    const bool could_be_raised = pool.budget_gib && pool.free_bytes && needed <= *pool.free_bytes;
    return Error(
        ErrorCode::kOutOfMemory,
        (pool.sharing > 1 ? "each rank of this run needs " : "this run needs ") +
            format_bytes(needed) + " of " + pool.name + ", but has " +
            format_bytes(*pool.room_bytes) + ": " + format_bytes(missing) + " are missing. " +
            (could_be_raised ? "Raise " + pool.budget_key + " to " +
                                   gib_text(needed * static_cast<std::uint64_t>(pool.sharing)) +
                                   ", which this machine has free; or: "
                             : "") +
            (pool.is_host && needed - fixed < missing
                 ? more_memory(pool, fixed, missing)
                 : memory_remedy(config_, plan_, lines, missing)));
  }

  // The memory that is needed if no setting is enough, as in a small container.
  std::string more_memory(const Pool& pool, std::uint64_t fixed, std::uint64_t missing) const {
    const std::uint64_t more = missing + missing / 8;  // includes the margin
    return "No setting is enough: " + format_bytes(fixed) +
           " are the program and buffers, which no setting reduces. " +
           (pool.limit.empty() ? "The run needs " + format_bytes(more) + " more free " + pool.name
                               : "Raise the memory limit of this container or job to " +
                                     format_bytes(*facts_.cgroup_limit_bytes + more));
  }

  // A drive in a file system in memory uses the same pool.
  std::vector<MemoryLine> host_lines() const {
    std::vector<MemoryLine> lines = plan_.host;
    for (const PathBytes& it : on_paths_) {
      const aio::StorageInfo& storage = storage_.at(it.path);
      if (storage.in_memory)
        lines.push_back({it.path + ", which is memory (" + storage.file_system + ")",
                         MemoryUse::kFilesInMemory, it.bytes});
    }
    return lines;
  }

  // Set if a control group leaves less than the machine has.
  std::string limit_of_host() const {
    if (!facts_.cgroup_limit_bytes || host_free(facts_) != facts_.cgroup_bytes) return "";
    return ", within the control group's limit of " + format_bytes(*facts_.cgroup_limit_bytes);
  }

  Status host() {
    const std::vector<MemoryLine> lines = host_lines();
    std::uint64_t needed = 0;
    for (const MemoryLine& each : lines) needed += each.bytes;
    return check({.name = "host memory",
                  .budget_key = "budget.cpu_gib",
                  .budget_gib = config_.budget.cpu_gib,
                  .free_bytes = host_free(facts_),
                  .room_bytes = host_room(config_.budget, facts_),
                  .limit = limit_of_host(),
                  .sharing = facts_.ranks,
                  .is_host = true},
                 lines, needed);
  }

  // The plan has already given up the slots that it can.
  Status gpu() {
    if (!plan_.cuda) return {};
    return check({.name = "GPU memory",
                  .budget_key = "budget.gpu_gib",
                  .budget_gib = config_.budget.gpu_gib,
                  .free_bytes = gpu_free(facts_),
                  .room_bytes = gpu_room(config_.budget, facts_),
                  .limit = ""},
                 plan_.gpu, plan_.gpu_bytes());
  }

  void locked() {
    const std::uint64_t wanted = plan_.locked_bytes();
    if (wanted == 0) return;
    line("  pinned part", format_bytes(wanted),
         facts_.memlock_bytes ? "of " + format_bytes(*facts_.memlock_bytes) + " (ulimit -l)"
                              : "no limit (ulimit -l)");
    if (!facts_.memlock_bytes || wanted <= *facts_.memlock_bytes) return;
    report_.warnings.push_back(
        "ulimit -l allows " + format_bytes(*facts_.memlock_bytes) + " to be pinned, but " +
        format_bytes(wanted) +
        " are needed: the other buffers are not registered, which costs more CPU time per byte, "
        "and may be swapped out. Raise the limit with ulimit -l unlimited, "
        "/etc/security/limits.conf or LimitMEMLOCK= (see sluice doctor)");
  }

  // Paths that both stores use need room for both, and so do paths of one file system.
  Status nvme() {
    if (plan_.nvme_bytes() == 0) return {};
    part("NVMe", plan_.nvme, plan_.nvme_bytes(), "");
    if (config_.budget.nvme_gib) {
      const auto allowed = static_cast<std::uint64_t>(*config_.budget.nvme_gib * kGiB);
      if (plan_.nvme_bytes() > allowed) {
        return Error(ErrorCode::kNoSpace,
                     "this run needs " + format_bytes(plan_.nvme_bytes()) +
                         " on NVMe, more than budget.nvme_gib allows: raise it to " +
                         gib_text(plan_.nvme_bytes()));
      }
    }
    std::vector<std::string> paths;
    paths.reserve(on_paths_.size());
    for (const PathBytes& it : on_paths_) paths.push_back(it.path);
    for (const auto& system : file_systems_of_paths(files_, paths, file_system_of_)) {
      std::vector<PathBytes> there;
      there.reserve(system.paths.size());
      for (const std::size_t i : system.paths) there.push_back(on_paths_[i]);
      SLUICE_RETURN_IF_ERROR(file_system(system.folder, there));
    }
    return {};
  }

  // Advice for full paths, in addition to making room on them.
  std::string share_remedy(const std::vector<PathBytes>& full) const {
    const std::vector<std::string>& paths = config_.budget.nvme_paths;
    const auto is_full = [&](const std::string& path) {
      return std::any_of(full.begin(), full.end(),
                         [&](const PathBytes& it) { return it.path == path; });
    };
    if (paths.size() < 2 || std::all_of(paths.begin(), paths.end(), is_full)) return "";
    // Both stores have the same weights.
    std::vector<int> weights = plan_.params.options.store.weights;
    if (weights.empty()) weights.assign(paths.size(), 1);
    return ", give " + std::string(full.size() > 1 ? "them" : "it") +
           " a smaller share of the stripes (placement.nvme_weights, now " +
           swap::to_text(weights) + ")";
  }

  Status file_system(const std::string& folder, const std::vector<PathBytes>& on_paths) {
    SLUICE_ASSIGN_OR_RETURN(const std::uint64_t free, files_.free_bytes(folder));
    std::uint64_t needed = 0;
    std::string paths;
    for (const PathBytes& it : on_paths) {
      needed += it.bytes;
      paths += (paths.empty() ? "" : " and ") + it.path;
    }
    const std::string of =
        "of " + format_bytes(free) + " free" + (on_paths.size() > 1 ? " for " + paths : "");
    if (needed <= free) {
      for (const PathBytes& it : on_paths) SLUICE_RETURN_IF_ERROR(can_write(it, of));
      return {};
    }
    for (const PathBytes& it : on_paths) line("  on " + it.path, format_bytes(it.bytes), of);
    return Error(ErrorCode::kNoSpace,
                 "this run needs " + format_bytes(needed) + " at " + paths +
                     (on_paths.size() > 1 ? " together, on one file system" : "") + ", where " +
                     format_bytes(free) + " are free: " + format_bytes(needed - free) +
                     " are missing. Free some space there" + share_remedy(on_paths) +
                     ", or add a path on another drive to budget.nvme_paths");
  }

  Status can_write(const PathBytes& on_path, const std::string& of) {
    const std::string& path = on_path.path;
    const auto probe = files_.open(nearest_existing_ancestor(files_, path),
                                   {.access = aio::OpenOptions::Access::kReadWrite,
                                    .create = aio::OpenOptions::Create::kAnonymous});
    if (!probe.ok()) {
      return Error(
          probe.error().code(),
          probe.error().message() + ": set budget.nvme_paths to writable folders on a local drive");
    }
    const aio::StorageInfo& storage = storage_.at(path);
    const bool direct = (*probe)->direct();
    line("  on " + path, format_bytes(on_path.bytes),
         of + ", " +
             (storage.in_memory ? "in memory (" + storage.file_system + ")"
              : direct          ? "O_DIRECT"
                                : "through the page cache"));
    if (storage.in_memory) {
      report_.warnings.push_back(
          path + " is not on a drive: its file system (" + storage.file_system +
          ") keeps files in memory, so what the run stores there counts as host memory. Set "
          "budget.nvme_paths to a folder on a local drive (ext4 or XFS, for example)");
    } else if (!direct) {
      report_.warnings.push_back(
          path +
          " is used through the page cache, because its file system does not support O_DIRECT: "
          "every byte is copied once more, and the cache takes memory from the run. Set "
          "budget.nvme_paths to a folder on a local drive (ext4 or XFS, for example)");
    }
    if (storage.copies_on_write && !overwritten_in_place(**probe)) {
      report_.warnings.push_back(
          path + " is on " + storage.file_system +
          ", which writes overwritten data to new blocks: space cannot be reserved there, and if "
          "the drive fills up the run ends in the middle of a step. Leave at least as much free as "
          "the run stores, or set budget.nvme_paths to a folder on ext4 or XFS");
    }
    return {};
  }

  static bool overwritten_in_place(const aio::File& file) {
    return file.descriptor() >= 0 && aio::set_overwritten_in_place(file.descriptor());
  }

  Status io() {
    using Choice = config::IoBackendChoice;
    const bool refused = facts_.uring_refusal.has_value();
    if (config_.aio.backend == Choice::kUring && refused) {
      return Error(ErrorCode::kInvalidArgument,
                   "aio.backend is \"io_uring\", which is not available: " + *facts_.uring_refusal +
                       ". Allow it (sluice doctor says how), or use POSIX threads (aio.backend: "
                       "\"auto\")");
    }
    if (plan_.nvme_bytes() == 0) return {};
    if (config_.aio.backend == Choice::kPosix) {
      line("  by", "POSIX", "threads (aio.backend)");
    } else if (refused) {
      line("  by", "POSIX", "threads: " + *facts_.uring_refusal);
      report_.warnings.push_back(
          "POSIX threads are used instead of io_uring, at more CPU time per operation: " +
          *facts_.uring_refusal + " (see sluice doctor)");
    } else {
      line("  by", "io_uring");
    }
    return {};
  }

  const config::Config& config_;
  const MemoryPlan& plan_;
  const MachineFacts& facts_;
  aio::FileSystem& files_;
  const FileSystemOf& file_system_of_;
  const std::vector<PathBytes> on_paths_;
  std::map<std::string, aio::StorageInfo> storage_;  // of each path in on_paths_
  std::ostringstream text_;
  PreflightReport report_;
};

}  // namespace

aio::StorageInfo storage_of(const std::string& folder) {
  aio::StorageInfo storage = aio::storage_info(folder);
  if (!storage.in_memory && aio::folder_is_memory(folder)) {
    storage.in_memory = true;
    storage.file_system += " on tmpfs";
  }
  return storage;
}

std::vector<std::string> budget_warnings(const config::Budget& budget, const MachineFacts& facts) {
  std::vector<std::string> warnings;
  const auto compare = [&](const std::string& key, std::optional<double> gib,
                           std::optional<std::uint64_t> free, int sharing, const char* then) {
    if (!gib || !free || *gib * kGiB <= static_cast<double>(*free)) return;
    const auto of_all = static_cast<std::uint64_t>(sharing);
    warnings.push_back(
        key + " asks for " + format_bytes(static_cast<std::uint64_t>(*gib * sharing * kGiB)) +
        ", but only " + format_bytes(*free * of_all) + " are available on this machine; " + then);
  };
  compare("budget.cpu_gib", budget.cpu_gib, host_free(facts), facts.ranks, "the setting is used");
  compare("budget.gpu_gib", budget.gpu_gib, gpu_free(facts), 1, "the run uses the smaller number");
  return warnings;
}

PreflightReport preflight(const config::Config& config, const MemoryPlan& plan,
                          const MachineFacts& facts, aio::FileSystem& files,
                          const FileSystemOf& file_system_of, const StorageOf& storage) {
  return Check(config, plan, facts, files, file_system_of, storage).run();
}

}  // namespace sluice::engine
