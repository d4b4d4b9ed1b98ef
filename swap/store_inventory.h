// What lies on an NVMe path: stores of live runs, stores that were closed, and what killed runs
// left.
//
// Threads: any; blocking.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "swap/run_directory.h"
#include "swap/store_manifest.h"

namespace sluice::swap {

enum class StoreCondition : std::uint8_t {
  kInUse,      // its run is alive
  kWhole,      // closed by its run, as far as this path tells: open() will take it
  kLeftover,   // its run ended without closing it: records may be half-written
  kElsewhere,  // as kLeftover, but of another host, whose lock may not be seen here
  kUnknown,    // it is not closed as far as can be seen, and cannot be read: never removed
};
std::string_view to_string(StoreCondition condition);

struct FoundStore {
  FoundRun found;
  StoreCondition condition = StoreCondition::kLeftover;
  std::string problem;  // why it is kUnknown
};

// One sentence: "/nvme/sluice-a (12.5G) was left by process 4711 on host h, started ...".
std::string describe(const FoundStore& store);
std::string describe(const RunOwner& owner);  // "process 4711 on host h (started ...)"

// All of one path.
Result<std::vector<FoundStore>> list_stores(aio::IoQueue& queue, const std::string& path);

// Removes every kLeftover on the paths, and nothing else; returns what was removed.
Result<std::vector<FoundStore>> remove_leftovers(aio::IoQueue& queue,
                                                 const std::vector<std::string>& paths);

// A closed store, looked at without taking it.
struct ClosedStore {
  std::vector<std::string> paths;  // those given, in the layout's order
  StoreLayout layout;
  ClosedMark mark;
};
// Errors as of StateStore::open().
Result<ClosedStore> find_closed(aio::IoQueue& queue, const std::vector<std::string>& paths,
                                const std::string& run);

// The same of a store that need not be closed: nobody knows its generations then.
struct AnyStore {
  std::vector<std::string> paths;
  StoreLayout layout;
  std::optional<ClosedMark> mark;
};
Result<AnyStore> find_any(aio::IoQueue& queue, const std::vector<std::string>& paths,
                          const std::string& run);

// Ok where the folder's store.json can be read, or there is none because its run was killed while
// it made the store. kCorrupt, kNewerVersion and the errors of reading name the file.
Status check_readable(aio::IoQueue& queue, const std::string& folder);

// The folder of a run on a path.
std::string folder_of(const std::string& path, const std::string& run);

}  // namespace sluice::swap
