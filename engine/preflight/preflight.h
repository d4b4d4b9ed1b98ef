// The preflight check: whether this machine has what a run's memory plan needs, and whether its
// drives and limits let it run fast; before anything is allocated.
//
// A budget that is given is obeyed, with a warning where it is more than the machine seems to have
// (some machines grow their memory as it is used). Otherwise it comes from MemAvailable and the
// cgroup's limit, and from what the GPU and the drives have free, less a margin.
//
// NVMe paths of one file system need what is free there together. On each, or the folder above it
// that exists, a file without a name is made and removed again: it shows whether the path can be
// written, past the page cache, and overwritten in place. What lies on a file system of memory
// counts as the host's memory too.
//
// What refuses the run comes with the whole table, as a verdict: kOutOfMemory, kNoSpace: what is
// missing, what takes most of it, and the setting that would fix it; kInvalidArgument where
// io_uring is asked for and refused; the errors of a path that cannot be written.
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

// What lies under a folder that exists.
using StorageOf = std::function<aio::StorageInfo(const std::string& folder)>;
aio::StorageInfo storage_of(const std::string& folder);

struct PreflightReport {
  std::string table;                  // aligned text, one line a tier and part
  std::vector<std::string> notes;     // sentences: what is done differently from what was asked
  std::vector<std::string> warnings;  // sentences: what costs speed or may go wrong
  Status verdict;                     // why the run cannot be; the first of several reasons
};

// Sentences about budgets that exceed what the machine seems to have.
std::vector<std::string> budget_warnings(const config::Budget& budget, const MachineFacts& facts);

PreflightReport preflight(const config::Config& config, const MemoryPlan& plan,
                          const MachineFacts& facts, aio::FileSystem& files,
                          const FileSystemOf& file_system_of = device_number_of,
                          const StorageOf& storage = storage_of);

}  // namespace sluice::engine
