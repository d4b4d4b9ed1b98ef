// The preflight check: whether this machine has the memory and the space that a run's memory plan
// needs, and whether its drives and limits let it run fast. It runs before anything is allocated.
//
// A given budget of host memory is obeyed, with a warning if it exceeds the machine's apparent
// memory (some machines grow it as it is used). One of GPU memory is cut to what is free, with a
// warning. Otherwise the budget is the free memory less a margin:
// from MemAvailable and the cgroup's limit for the host, and from the GPU's and the drives' free
// space.
//
// NVMe paths of one file system share its free space. On each path, or its nearest existing
// ancestor, an unnamed file is created and removed again. This tests whether the path can be
// written, with direct IO, and overwritten in place. Files in a file system in memory also count as
// host memory.
//
// A refusal is returned with the whole table, as a verdict. For kOutOfMemory and kNoSpace it says
// how much is missing, what needs most of it, and the setting that would fix it. It is
// kInvalidArgument if io_uring is configured but not permitted. A path that cannot be written has
// its own error.
//
// Threads: one; blocking.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "aio/file_system.h"
#include "aio/result.h"
#include "aio/storage_info.h"
#include "engine/budget/memory_plan.h"
#include "engine/config/config.h"
#include "engine/preflight/machine_facts.h"
#include "engine/preflight/shared_file_systems.h"

namespace sluice::engine {

// The storage of an existing folder.
using StorageOf = std::function<aio::StorageInfo(const std::string& folder)>;
aio::StorageInfo storage_of(const std::string& folder);

struct PreflightReport {
  std::string table;                  // aligned text, one line per tier and part
  std::vector<std::string> notes;     // deviations from the configuration, as sentences
  std::vector<std::string> warnings;  // things that cost speed or may fail, as sentences
  Status verdict;                     // the first reason why the run cannot start
};

// Sentences about budgets that exceed the machine's apparent memory.
std::vector<std::string> budget_warnings(const config::Budget& budget, const MachineFacts& facts);

PreflightReport preflight(const config::Config& config, const MemoryPlan& plan,
                          const MachineFacts& facts, aio::FileSystem& files,
                          const FileSystemOf& file_system_of = device_number_of,
                          const StorageOf& storage = storage_of);

}  // namespace sluice::engine
