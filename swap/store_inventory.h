// The stores on an NVMe path: those of live runs, and those that killed runs left.
//
// Threads: any; blocking.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "aio/executor.h"
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

// scrub: reads every record of a store and checks it, without changing anything.
//
// Records are checked against their own headers. Each is intact in one of its places, or not; scrub
// cannot tell whether they belong together.
//
// Memory:  at most four images of the largest record.
// Threads: blocking; checks run on the executor's threads.
// Errors:  damage is a result of scrub(), not an error; kBusy, kNotFound and failures to read the
//          manifest are errors. A record that cannot be read counts as bad.
struct BadRecord {
  std::string name;
  std::string problem;  // a sentence
};

struct ScrubReport {
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;          // read
  std::uint64_t never_written = 0;  // records without a header
  std::vector<BadRecord> bad;
};

using ScrubProgress = std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

Result<ScrubReport> scrub(aio::IoQueue& queue, aio::Executor& executor,
                          const std::vector<std::string>& paths, const std::string& run,
                          const ScrubProgress& on_progress = {});

}  // namespace sluice::swap
