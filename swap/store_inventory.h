// The stores on an NVMe path: those of live runs, and those that killed runs left.
//
// Threads: any; blocking.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "swap/store_directory.h"
#include "swap/store_manifest.h"

namespace sluice::swap {

// One sentence: "/nvme/sluice-a (12.5G) was left half-written by process 4711 on h (started ...),
// which was killed".
std::string describe(const FoundRun& found);
std::string describe(const RunOwner& owner);

// Removes a store that is held on all given paths. After a kill at any moment the rest is a
// leftover on every path: first the mark that it was closed is removed, then the record of its
// other parts.
Status remove_store(aio::IoQueue& queue, const StoreDirectories& directories);

struct Sweep {
  std::vector<FoundRun> removed;
  std::vector<FoundRun> kept;
};
// Removes every kLeftover on the paths for which `which` is true (empty: all), and nothing else.
// Their parts on paths that were not given are removed too, because half a store is useless. A
// store that cannot be removed is kept, and its problem says why.
Result<Sweep> remove_leftovers(aio::IoQueue& queue, const std::vector<std::string>& paths,
                               const std::function<bool(const FoundRun&)>& which = {});

// Removes a run's folders on the paths, whatever they contain. If one is visibly in use, returns
// kBusy and removes nothing. kNotFound: there is none.
Result<std::vector<FoundRun>> remove_run(aio::IoQueue& queue, const std::vector<std::string>& paths,
                                         const std::string& run);

// A store, inspected without taking it.
struct FoundStore {
  std::vector<std::string> paths;  // the given paths, in the layout's order
  StoreLayout layout;
};
// `paths` in any order. kNotFound: there is no store; kCorrupt: its run was killed while creating
// it, its parts do not belong together, or its manifest is damaged.
Result<FoundStore> find_store(aio::IoQueue& queue, const std::vector<std::string>& paths,
                              const std::string& run);

}  // namespace sluice::swap
