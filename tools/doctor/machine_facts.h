// MachineFacts: what a machine has that training needs or is faster with. Plain values: gathered
// once (gather_facts.h), then judged by a pure function (judge.h).
//
// An empty optional or string is a fact that the machine does not report.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "aio/nvme_health.h"

namespace sluice::doctor {

// What this program was built with.
struct BuildFacts {
  std::string torch_version;       // "2.11.0+cu130"; empty: built without the engine
  std::string cuda_version;        // "13.0.88"; empty: built without CUDA code
  std::vector<int> architectures;  // of the CUDA kernels: 75 for compute capability 7.5
};

// The program next to `sluice` that computes, and the libraries that the loader finds for it.
struct EngineFacts {
  std::string path;
  bool exists = false;
  bool starts = false;
  std::string problem;                         // why it does not start, in the loader's words
  std::string warning;                         // what it says on standard error although it starts
  std::vector<std::string> missing_libraries;  // "libtorch_cpu.so"
  std::string torch_folder;                    // the folder that has lib/libtorch_cpu.so
  std::string torch_version;
};

struct GpuFacts {
  std::string name;
  std::string bus_id;
  int compute_capability = 0;  // 75 for 7.5
  std::uint64_t total_bytes = 0;
  std::optional<std::uint64_t> free_bytes;
};

struct DriverFacts {
  int pci_gpus = 0;             // NVIDIA display devices on the bus.
  bool answers = true;          // False if a call of the driver hangs.
  bool has_library = false;     // It has libcuda.so.1.
  std::string version;          // "580.95.05"
  int cuda_version = 0;         // 13000: it supports CUDA up to 13.0
  int error_code = 0;           // of cuInit and the calls after it, a CUresult
  std::string error;            // the same in the driver's words
  std::string visible_devices;  // CUDA_VISIBLE_DEVICES
  bool has_visible_devices = false;
  std::vector<GpuFacts> gpus;
  std::vector<std::pair<int, int>> not_peers;  // pairs without direct access to each other's memory
};

struct NcclFacts {
  std::string library;  // the path or name that was opened
  std::string version;  // "2.28.9"; empty: it cannot be used
  std::string problem;
};

struct CpuFacts {
  std::string model;
  int cores = 0;          // of the machine
  int allowed_cores = 0;  // by the affinity mask
  std::optional<double> quota_cores;
  std::string missing_for_avx2;  // the first instruction set that is missing: "FMA"
  std::string missing_for_avx512;
  int numa_nodes = 1;
};

struct MemoryFacts {
  std::uint64_t total_bytes = 0;
  std::uint64_t available_bytes = 0;
  std::optional<std::uint64_t> cgroup_limit_bytes;
  std::optional<std::uint64_t> cgroup_room_bytes;
};

struct LimitFacts {
  std::optional<std::uint64_t> memlock_bytes;  // empty: no limit
  bool memlock_applies = true;                 // false: this process may exceed it
  std::optional<std::uint64_t> open_files;     // the hard limit; empty: no limit
};

struct UringFacts {
  std::string refusal;          // empty: io_uring works
  int error_number = 0;         // of io_uring_setup
  std::optional<int> disabled;  // kernel.io_uring_disabled
  bool has_seccomp_filter = false;
};

struct SystemFacts {
  std::string kernel;        // "6.18.44"
  std::string distribution;  // "Debian GNU/Linux 12 (bookworm)"
  int wsl = 0;               // 1 or 2; 0: no WSL
  std::string container;     // "docker"; empty: none was detected
  std::string huge_pages;    // the chosen mode of transparent huge pages: "madvise"
  std::optional<std::uint64_t> shared_memory_bytes;  // the size of /dev/shm
  std::optional<std::uint64_t> shared_memory_free_bytes;
};

enum class DriveKind : std::uint8_t {
  kUnknown,
  kNvme,
  kSsd,
  kRotational,
  kVirtual,  // a virtual machine's disk, which does not show what it is
  kNetwork,
  kMemory,
  kOverlay,  // a container's root whose upper layer is not visible
};

struct PathFacts {
  std::string path;
  bool is_named = false;  // by the user
  bool answers = true;    // false: a call hangs
  std::string problem;    // why files cannot be made there
  std::string file_system;
  std::string device;  // "nvme0n1"
  DriveKind kind = DriveKind::kUnknown;
  bool direct = false;                // O_DIRECT works
  bool overwrites_elsewhere = false;  // copy on write, which cannot be turned off
  std::uint64_t free_bytes = 0;
  std::string same_as;  // an earlier path on the same file system, which was measured
  std::optional<double> read_bytes_per_s;
  std::optional<double> write_bytes_per_s;
  std::optional<aio::NvmeHealth> health;  // of NVMe drives
  std::string health_problem;             // why it is not known
};

struct MachineFacts {
  BuildFacts build;
  EngineFacts engine;
  DriverFacts driver;
  NcclFacts nccl;
  CpuFacts cpu;
  MemoryFacts memory;
  LimitFacts limits;
  UringFacts uring;
  SystemFacts system;
  std::vector<PathFacts> paths;
};

}  // namespace sluice::doctor
