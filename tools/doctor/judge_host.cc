// Processor, memory, limits and the system.
#include <algorithm>
#include <cerrno>
#include <sstream>
#include <string>
#include <vector>

#include "aio/text.h"
#include "aio/units.h"
#include "tools/doctor/judge.h"

namespace sluice::doctor {
namespace {

// Costs are those of bench/README.md.
constexpr std::uint64_t kLeastMemoryBytes = kGiB / 2;  // LibTorch and a small model
constexpr std::uint64_t kLittleMemoryBytes = 4 * kGiB;
constexpr std::uint64_t kEnoughLockedBytes = kGiB;
constexpr std::uint64_t kEnoughSharedBytes = kGiB / 2;
constexpr std::uint64_t kEnoughFiles = 1024;

std::int64_t whole(std::uint64_t value) { return static_cast<std::int64_t>(value); }

void judge_cores(const CpuFacts& cpu, std::vector<Finding>& findings) {
  Finding it{.key = "cpu", .subject = "processor"};
  const double usable =
      std::min(static_cast<double>(cpu.allowed_cores), cpu.quota_cores.value_or(cpu.allowed_cores));
  it.found = cpu.model + ", " + counted(cpu.cores, "core");
  it.values = {{"model", cpu.model},
               {"cores", std::int64_t{cpu.cores}},
               {"allowed_cores", std::int64_t{cpu.allowed_cores}},
               {"usable_cores", usable}};
  if (usable < cpu.cores) {
    const bool by_quota = cpu.quota_cores && *cpu.quota_cores < cpu.allowed_cores;
    it.found += ", of which this process may use " + significant(usable, 3);
    add_problem(
        it, State::kLimited, "Updates in RAM, checksums and runs on the CPU have only these cores.",
        by_quota ? "A control group sets the quota: docker run --cpus, resources.limits.cpu "
                   "in Kubernetes, CPUQuota= in systemd."
                 : "The affinity is inherited: taskset, numactl, Slurm's --cpus-per-task, "
                   "docker run --cpuset-cpus.");
  }
  findings.push_back(it);

  Finding sets{.key = "instructions", .subject = "instructions"};
  sets.values = {{"avx2", cpu.missing_for_avx2.empty()},
                 {"avx512", cpu.missing_for_avx512.empty()}};
  const std::string hidden =
      "If the CPU has them, a virtual machine hides them: choose the host's CPU model there.";
  if (!cpu.missing_for_avx2.empty()) {
    sets.found = "no AVX2 (" + cpu.missing_for_avx2 + " is missing)";
    add_problem(sets, State::kLimited,
                "Scalar code serves: casting gradients took 17 times as long as with AVX2.",
                hidden);
  } else if (!cpu.missing_for_avx512.empty()) {
    sets.found = "AVX2, no AVX-512 (" + cpu.missing_for_avx512 + " is missing)";
    add_problem(sets, State::kLimited,
                "AdamW in RAM and casts of gradients take up to 13% longer than with AVX-512.",
                hidden);
  } else {
    sets.found = "AVX-512, AVX2";
  }
  findings.push_back(sets);

  Finding numa{.key = "numa", .subject = "NUMA", .found = counted(cpu.numa_nodes, "node")};
  numa.values = {{"nodes", std::int64_t{cpu.numa_nodes}}};
  if (cpu.numa_nodes > 1)
    add_problem(numa, State::kLimited,
                "Memory of another node is slower, and Sluice does not choose nodes.",
                "If one node has memory enough, bind the run to that of the GPU: numactl "
                "--cpunodebind=0 --membind=0 sluice train ...");
  findings.push_back(numa);
}

void judge_memory(const MemoryFacts& memory, std::vector<Finding>& findings) {
  Finding it{.key = "memory", .subject = "memory"};
  const std::uint64_t room =
      std::min(memory.available_bytes, memory.cgroup_room_bytes.value_or(memory.available_bytes));
  it.found = format_bytes(room) + " available of " + format_bytes(memory.total_bytes);
  it.values = {{"available_bytes", whole(room)}, {"total_bytes", whole(memory.total_bytes)}};
  const bool is_limited =
      memory.cgroup_limit_bytes && *memory.cgroup_limit_bytes < memory.total_bytes;
  std::string change = "End other programs, or take a machine with more.";
  if (is_limited) {
    it.values.emplace_back("cgroup_limit_bytes", whole(*memory.cgroup_limit_bytes));
    it.found += ", within the control group's limit of " + format_bytes(*memory.cgroup_limit_bytes);
    change =
        "The limit is that of docker run --memory, resources.limits.memory in Kubernetes, "
        "Slurm's --mem or MemoryMax= in systemd.";
  }
  if (room < kLeastMemoryBytes) {
    it.is_needed = true;
    add_problem(it, State::kNotPossible, "LibTorch and a small model need more than half a GiB.",
                change);
  } else if (is_limited) {
    add_problem(it, State::kLimited,
                "A run gets no more than that; the kernel ends a process that takes more.", change);
  } else if (room < kLittleMemoryBytes) {
    add_problem(it, State::kLimited,
                "Only small models fit: RAM holds 2 bytes for each trained parameter, and buffers.",
                change);
  }
  findings.push_back(it);
}

void judge_limits(const MachineFacts& facts, std::vector<Finding>& findings) {
  const LimitFacts& limits = facts.limits;
  Finding locked{.key = "memlock", .subject = "locked memory"};
  if (!limits.memlock_bytes) {
    locked.found = "no limit (ulimit -l)";
  } else {
    locked.values = {{"limit_bytes", whole(*limits.memlock_bytes)},
                     {"applies", limits.memlock_applies}};
    locked.found = format_bytes(*limits.memlock_bytes) + " (ulimit -l)";
    if (!limits.memlock_applies) {
      locked.found += ", which does not bind this process";
    } else if (*limits.memlock_bytes < kEnoughLockedBytes) {
      add_problem(
          locked, State::kLimited,
          "IO buffers beyond it are not registered, which takes more CPU time per byte, and "
          "may be swapped out.",
          facts.system.container.empty()
              ? "ulimit -l unlimited, \"* - memlock unlimited\" in "
                "/etc/security/limits.conf, or LimitMEMLOCK=infinity in systemd."
              : "docker run --ulimit memlock=-1.");
    }
  }
  findings.push_back(locked);

  Finding files{.key = "open_files", .subject = "open files"};
  if (limits.open_files) files.values = {{"limit", whole(*limits.open_files)}};
  files.found = limits.open_files ? std::to_string(*limits.open_files) + " (ulimit -Hn)"
                                  : "no limit (ulimit -Hn)";
  if (limits.open_files && *limits.open_files < kEnoughFiles)
    add_problem(files, State::kLimited,
                "Models with many files, and runs with many ranks, may need more.",
                facts.system.container.empty()
                    ? "\"* - nofile 65536\" in /etc/security/limits.conf, or LimitNOFILE=."
                    : "docker run --ulimit nofile=65536.");
  findings.push_back(files);
}

bool is_older_than_uring(const std::string& kernel) {
  int major = 0;
  int minor = 0;
  char dot = 0;
  std::istringstream(kernel) >> major >> dot >> minor;
  return major < 5 || (major == 5 && minor < 1);
}

struct Refusal {
  std::string by;  // empty: unknown
  std::string change;
};

Refusal refusal_of(const MachineFacts& facts) {
  const int disabled = facts.uring.disabled.value_or(0);
  if (disabled != 0)
    return {.by = "kernel.io_uring_disabled is " + std::to_string(disabled),
            .change = "As root: sysctl kernel.io_uring_disabled=0."};
  if (facts.uring.error_number == ENOSYS && is_older_than_uring(facts.system.kernel))
    return {.by = "Linux " + facts.system.kernel + " has none",
            .change = "Use Linux 5.11 or newer."};
  if (facts.uring.has_seccomp_filter)
    return {.by = "a seccomp profile forbids it",
            .change =
                "docker run --security-opt seccomp=FILE, with a profile that permits "
                "io_uring_setup, io_uring_enter and io_uring_register."};
  return {};
}

void judge_uring(const MachineFacts& facts, std::vector<Finding>& findings) {
  const UringFacts& uring = facts.uring;
  Finding it{.key = "io_uring", .subject = "io_uring", .found = "allowed"};
  it.values = {{"allowed", uring.refusal.empty()}};
  if (!uring.refusal.empty()) {
    const Refusal refusal = refusal_of(facts);
    it.values.emplace_back("errno", std::int64_t{uring.error_number});
    it.found = "refused: " +
               (refusal.by.empty()
                    ? uring.refusal  // ends with a guess at the reason
                    : uring.refusal.substr(0, uring.refusal.rfind(": ")) + ", since " + refusal.by);
    add_problem(it, State::kLimited, "A pool of threads reads and writes, at more CPU time per GB.",
                refusal.change);
  }
  findings.push_back(it);
}

void judge_system(const MachineFacts& facts, std::vector<Finding>& findings) {
  const SystemFacts& system = facts.system;
  Finding pages{.key = "huge_pages", .subject = "huge pages"};
  pages.values = {{"transparent", system.huge_pages}};
  if (system.huge_pages.empty() || system.huge_pages == "never") {
    pages.found = system.huge_pages.empty() ? "not in this kernel" : "never (transparent)";
    add_problem(
        pages, State::kLimited,
        "Buffers have pages of 4 KiB: reads of large blocks take several times the CPU time.",
        system.huge_pages.empty()
            ? ""
            : "As root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled.");
  } else {
    pages.found = system.huge_pages + " (transparent)";
  }
  findings.push_back(pages);

  Finding shared{.key = "shared_memory", .subject = "shared memory"};
  const bool has_several_gpus = facts.driver.gpus.size() > 1;
  if (system.shared_memory_bytes) {
    shared.found = format_bytes(*system.shared_memory_bytes) + " (/dev/shm)";
    shared.values = {{"bytes", whole(*system.shared_memory_bytes)}};
  } else {
    shared.found = "no /dev/shm";
  }
  if (system.shared_memory_bytes.value_or(0) < kEnoughSharedBytes)
    add_problem(shared, State::kLimited,
                std::string(has_several_gpus ? "NCCL may find no room for what GPUs exchange"
                                             : "Several GPUs could find no room for what they "
                                               "exchange") +
                    ", and workers of a Python DataLoader may crash.",
                system.container.empty()
                    ? "As root: mount -o remount,size=1G /dev/shm."
                    : "docker run --shm-size=1g, or a memory volume at /dev/shm in Kubernetes.");
  findings.push_back(shared);

  Finding it{.key = "system", .subject = "system"};
  it.found = "Linux " + system.kernel +
             (system.distribution.empty() ? "" : ", " + system.distribution) +
             (system.container.empty() ? "" : ", in a container (" + system.container + ")");
  it.values = {{"kernel", system.kernel},
               {"distribution", system.distribution},
               {"container", system.container},
               {"wsl", std::int64_t{system.wsl}}};
  if (system.wsl == 1) {
    it.found += ", WSL 1";
    add_problem(it, State::kLimited,
                "WSL 1 has no GPU, no io_uring and no direct IO; Sluice was not tried on it.",
                "In Windows: wsl --set-version DISTRIBUTION 2.");
  } else if (system.wsl != 0) {
    it.found += ", WSL 2";
    add_problem(it, State::kLimited,
                "Windows limits pinned memory, and WSL takes half of the RAM by default.",
                "Raise memory= in .wslconfig, and store data inside WSL, not below /mnt.");
  }
  findings.push_back(it);
}

}  // namespace

void judge_host(const MachineFacts& facts, std::vector<Finding>& findings) {
  judge_cores(facts.cpu, findings);
  judge_memory(facts.memory, findings);
  judge_limits(facts, findings);
  judge_uring(facts, findings);
  judge_system(facts, findings);
}

}  // namespace sluice::doctor
