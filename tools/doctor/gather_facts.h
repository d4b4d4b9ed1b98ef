// Gathers the facts of this machine.
//
// Side effects: unnamed files in the given folders, gone with their last handle. The GPU driver and
//               NCCL are loaded into this process and stay loaded.
// Threads: one; blocking. A driver or a mount that does not answer is given up after a few seconds,
//          with the thread that waits for it.
// Errors:  none; what cannot be found out is missing from the facts, or has its reason there.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tools/doctor/machine_facts.h"

namespace sluice::doctor {

struct ProgramEnd {
  bool started = false;
  bool ended_well = false;  // with exit code 0
  bool timed_out = false;
  std::string ending;  // "it ended with exit code 127"; "it did not end within 60 s"
  std::string output;  // of standard output and standard error
};
// Runs a program to its end.
using RunProgram = std::function<ProgramEnd(const std::vector<std::string>& words)>;

struct GatherOptions {
  std::vector<std::string> paths;  // existing folders
  std::set<std::string> silent;    // those of them that do not answer, and are not looked at
  bool paths_are_named = false;    // by the user
  bool quick = false;              // does not measure drives
  std::string engine;              // the path of sluice-engine
  RunProgram run_program;
  std::optional<std::string> visible_devices;  // CUDA_VISIBLE_DEVICES
  std::string cuda_library = "libcuda.so.1";
  std::string nvml_library = "libnvidia-ml.so.1";
  std::string root;  // before /proc, /sys and /etc; tests set it
};

MachineFacts gather_facts(const GatherOptions& options);

// The parts.
BuildFacts build_facts();
EngineFacts engine_facts(const BuildFacts& build, const std::string& engine, const RunProgram& run);
DriverFacts driver_facts(const GatherOptions& options);
NcclFacts nccl_facts(const std::string& torch_folder);
CpuFacts cpu_facts(const std::string& root);
MemoryFacts memory_facts();
LimitFacts limit_facts();
UringFacts uring_facts();
SystemFacts system_facts(const std::string& root);
std::vector<PathFacts> path_facts(const GatherOptions& options);

// The kind of the block device of `device_number` ("259:1"), by the folders of /sys; with its name.
struct BlockDevice {
  std::string name;  // "nvme0n1"
  DriveKind kind = DriveKind::kUnknown;
};
BlockDevice block_device(const std::string& device_number, const std::string& root);

}  // namespace sluice::doctor
