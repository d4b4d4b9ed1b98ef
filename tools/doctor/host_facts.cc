#include <linux/io_uring.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <sstream>
#include <string>

#include "aio/cgroup_limits.h"
#include "aio/machine_info.h"
#include "aio/mount_table.h"
#include "aio/units.h"
#include "aio/uring_backend.h"
#include "offload/adamw/isa.h"
#include "tools/doctor/gather_facts.h"

namespace sluice::doctor {
namespace {

namespace fs = std::filesystem;

// The number after `key` in a file of lines "key value"; empty if there is none.
std::optional<std::uint64_t> number_after(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t number = 0;
    if (words >> name >> number && name == key) return number;
  }
  return std::nullopt;
}

int numa_nodes_with_memory(const std::string& root) {
  int nodes = 0;
  std::error_code error;
  for (fs::directory_iterator it(root + "/sys/devices/system/node", error), end;
       !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with("node") || name.find_first_not_of("0123456789", 4) != std::string::npos)
      continue;
    // "Node 0 MemTotal:  24684096 kB"
    std::istringstream words(aio::read_text(it->path().string() + "/meminfo"));
    std::string word;
    std::uint64_t kib = 0;
    while (words >> word && word != "MemTotal:") {
    }
    if (words >> kib && kib > 0) ++nodes;
  }
  return std::max(nodes, 1);
}

// Whether this process may lock more than the limit, as one with CAP_IPC_LOCK may. It is tried:
// capabilities inside a user namespace look the same and do not count.
bool may_lock_beyond(std::uint64_t limit_bytes) {
  constexpr std::uint64_t kMostTriedBytes = 256 * kMiB;
  const std::uint64_t bytes = align_up(limit_bytes + 1, 4 * kKiB);
  if (bytes > kMostTriedBytes) return false;
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  const bool locked = ::mlock(memory, bytes) == 0;
  ::munmap(memory, bytes);
  return locked;
}

std::string distribution(const std::string& root) {
  std::istringstream lines(aio::read_text(root + "/etc/os-release"));
  for (std::string line; std::getline(lines, line);) {
    constexpr std::string_view kKey = "PRETTY_NAME=";
    if (!line.starts_with(kKey)) continue;
    line.erase(0, kKey.size());
    std::erase(line, '"');
    return line;
  }
  return "";
}

// WSL 2 is a virtual machine with a kernel of Microsoft's; WSL 1 has no Linux kernel.
int wsl(const std::string& root) {
  std::string version = aio::read_text(root + "/proc/version");
  std::transform(version.begin(), version.end(), version.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (version.find("microsoft") == std::string::npos) return 0;
  return version.find("wsl2") != std::string::npos ||
                 version.find("microsoft-standard") != std::string::npos
             ? 2
             : 1;
}

std::string container(const std::string& root) {
  std::error_code error;
  if (fs::exists(root + "/.dockerenv", error)) return "docker";
  if (fs::exists(root + "/run/.containerenv", error)) return "podman";
  if (fs::exists(root + "/var/run/secrets/kubernetes.io", error)) return "kubernetes";
  if (fs::exists(root + "/.singularity.d", error)) return "apptainer";
  std::string name;
  std::istringstream(aio::read_text(root + "/run/systemd/container")) >> name;
  if (!name.empty()) return name;
  const std::string groups = aio::read_text(root + "/proc/1/cgroup");
  for (const char* const of : {"kubepods", "docker", "lxc"})
    if (groups.find(of) != std::string::npos)
      return of == std::string("kubepods") ? "kubernetes" : of;
  return "";
}

// "madvise" of "always [madvise] never".
std::string chosen(const std::string& modes) {
  const std::size_t begin = modes.find('[');
  const std::size_t end = modes.find(']', begin);
  return end == std::string::npos ? "" : modes.substr(begin + 1, end - begin - 1);
}

}  // namespace

CpuFacts cpu_facts(const std::string& root) {
  const aio::MachineInfo info = aio::machine_info();
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
  return {.model = info.cpu,
          .cores = std::max(static_cast<int>(online), info.cores),
          .allowed_cores = info.cores,
          .quota_cores = aio::cgroup_cores(root),
          .missing_for_avx2 = std::string(offload::missing_for(offload::Isa::kAvx2)),
          .missing_for_avx512 = std::string(offload::missing_for(offload::Isa::kAvx512)),
          .numa_nodes = numa_nodes_with_memory(root)};
}

MemoryFacts memory_facts() {
  MemoryFacts facts;
  const auto available = number_after(aio::read_text("/proc/meminfo"), "MemAvailable:");
  facts.total_bytes = aio::machine_info().ram_bytes;
  facts.available_bytes = available.value_or(0) * kKiB;
  if (const auto group = aio::cgroup_memory()) {
    facts.cgroup_limit_bytes = group->limit_bytes;
    facts.cgroup_room_bytes = group->room_bytes();
  }
  return facts;
}

LimitFacts limit_facts() {
  LimitFacts facts;
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    facts.memlock_bytes = limit.rlim_cur;
    facts.memlock_applies = !may_lock_beyond(limit.rlim_cur);
  }
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max != RLIM_INFINITY)
    facts.open_files = limit.rlim_max;
  return facts;
}

UringFacts uring_facts() {
  UringFacts facts;
  io_uring_params params{};
  const long descriptor = ::syscall(SYS_io_uring_setup, 1, &params);
  if (descriptor >= 0)
    ::close(static_cast<int>(descriptor));
  else
    facts.error_number = errno;
  const auto backend = aio::UringBackend::create({.queue_depth = 1});  // also tries a no-op
  if (!backend.ok()) facts.refusal = backend.error().message();
  int disabled = 0;
  if (std::istringstream(aio::read_text("/proc/sys/kernel/io_uring_disabled")) >> disabled)
    facts.disabled = disabled;
  facts.has_seccomp_filter =
      number_after(aio::read_text("/proc/self/status"), "Seccomp:").value_or(0) == 2;
  return facts;
}

SystemFacts system_facts(const std::string& root) {
  SystemFacts facts;
  utsname names{};
  if (::uname(&names) == 0) facts.kernel = names.release;
  facts.distribution = distribution(root);
  facts.wsl = wsl(root);
  facts.container = container(root);
  facts.huge_pages = chosen(aio::read_text(root + "/sys/kernel/mm/transparent_hugepage/enabled"));
  struct statfs shared {};
  if (::statfs((root + "/dev/shm").c_str(), &shared) == 0) {
    const auto block = static_cast<std::uint64_t>(shared.f_bsize);
    facts.shared_memory_bytes = shared.f_blocks * block;
    facts.shared_memory_free_bytes = shared.f_bavail * block;
  }
  return facts;
}

MachineFacts gather_facts(const GatherOptions& options) {
  MachineFacts facts;
  facts.build = build_facts();
  facts.engine = engine_facts(facts.build, options.engine, options.run_program);
  facts.driver = driver_facts(options);
  facts.nccl = nccl_facts(facts.engine.torch_folder);
  facts.cpu = cpu_facts(options.root);
  facts.memory = memory_facts();
  facts.limits = limit_facts();
  facts.uring = uring_facts();
  facts.system = system_facts(options.root);
  constexpr std::uint64_t kLeastToMeasure = kGiB / 4;  // buffers take 64 MiB
  GatherOptions of_paths = options;
  const std::uint64_t available = facts.memory.available_bytes;
  if (std::min(available, facts.memory.cgroup_room_bytes.value_or(available)) < kLeastToMeasure)
    of_paths.quick = true;
  facts.paths = path_facts(of_paths);
  return facts;
}

}  // namespace sluice::doctor
