// What lies on an NVMe path: stores of live runs, and what killed runs left.
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

// Removes a store that is held on the paths given. Through a kill at any moment the rest of it is
// a leftover, on every path: what says that it was closed goes first, then that it has other parts.
Status remove_store(aio::IoQueue& queue, const StoreDirectories& directories);

struct Sweep {
  std::vector<FoundRun> removed;
  std::vector<FoundRun> kept;
};
// Removes every kLeftover on the paths for which `which` is true (empty: all), and nothing else;
// including their parts on paths that were not given, since half a store would be of no use. One
// that cannot be removed is kept, and its problem says why.
Result<Sweep> remove_leftovers(aio::IoQueue& queue, const std::vector<std::string>& paths,
                               const std::function<bool(const FoundRun&)>& which = {});

// Removes the folders of a run on the paths, whatever is in them. If one is in use, as far as can
// be seen here: kBusy, and nothing is removed. kNotFound where there is none.
Result<std::vector<FoundRun>> remove_run(aio::IoQueue& queue, const std::vector<std::string>& paths,
                                         const std::string& run);

// A store, looked at without taking it.
struct FoundStore {
  std::vector<std::string> paths;  // those given, in the layout's order
  StoreLayout layout;
};
// `paths` in any order. kNotFound: there is none; kCorrupt: its run was killed while it was made,
// its parts do not belong together, or its manifest is damaged.
Result<FoundStore> find_store(aio::IoQueue& queue, const std::vector<std::string>& paths,
                              const std::string& run);

}  // namespace sluice::swap
