// StateSweep: shows the state of many tiles, in the canonical form, to the caller of restore(),
// snapshot() or amend(), using all threads of an executor.
//
// Each thread has a canonical tile of its own: it zeroes it, has it filled and packs it into the
// tier's form, or unpacks it and has it visited, or all of this. The visitor says how it may be
// called:
// kInOrder   one call at a time, tiles in ascending order; the work around the calls runs in
//            parallel. On any thread of the executor.
// kAnyOrder  several calls at once, in any order.
//
// Memory:  bytes_of(threads) at most, as tiles come; freed by the destructor.
// Threads: run() from one, with the executor otherwise unused.
// Errors:  after its first error the visitor is not called again: run() returns that error once no
//          thread is working any longer, and so does each later run().
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "aio/executor.h"
#include "aio/result.h"
#include "offload/adamw/adamw_arrays.h"
#include "offload/adamw/moment_rounding.h"
#include "offload/state/state_tiles.h"
#include "offload/sub_groups.h"

namespace sluice::offload {

enum class Calls : std::uint8_t { kInOrder, kAnyOrder };

class StateSweep {
 public:
  // More would only wait for memory.
  static constexpr int kMaxThreads = 24;
  static constexpr std::uint64_t bytes_of(int threads) {
    return static_cast<std::uint64_t>(threads) * kStateFields.size() * sizeof(float) *
           kTileElements;
  }

  enum class Direction : std::uint8_t {
    kRestore,
    kSnapshot,
    kAmend,  // a tile is shown as it is, and packed again
  };
  // Elements of a unit.
  using Visit = std::function<Status(int unit, const StateSlice& slice)>;
  // All must outlive it. `units`: whose first elements the slices are counted from. `rounding`: of
  // kRestore, for moments that are stored as bf16 and that it cannot represent.
  StateSweep(aio::Executor& executor, const Visit& visit, Direction direction, Calls calls,
             std::span<const UnitSpec> units, const MomentSeed& rounding = {});
  StateSweep(const StateSweep&) = delete;
  StateSweep& operator=(const StateSweep&) = delete;

  int threads() const { return threads_; }

  // All of its arrays in host memory, but no gradient.
  struct Tile {
    std::uint64_t first_element = 0;  // in the unit's shard
    std::uint64_t elements = 0;
    AdamwArrays arrays;
  };
  // A run of a unit's tiles. `at` is called once for each, on any thread, before that is looked at
  // or set.
  struct Tiles {
    int unit = 0;
    std::uint64_t count = 0;
    std::function<Tile(std::uint64_t index)> at;
  };
  Status run(const Tiles& tiles);
  // The visitor's first error.
  const Status& visited() const { return first_error_; }

 private:
  using CanonicalTile = std::vector<float>;  // state_slice_in()

  void work(const Tiles& tiles, CanonicalTile& canonical) noexcept;
  Status show(std::uint64_t index, int unit, const StateSlice& slice);
  bool await_turn(std::uint64_t index);
  void fail(Status status);

  aio::Executor& executor_;
  const Visit& visit_;
  const Direction direction_;
  const Calls calls_;
  const std::span<const UnitSpec> units_;
  const MomentSeed rounding_;
  const int threads_;
  std::vector<CanonicalTile> canonical_;  // by thread

  std::atomic<std::uint64_t> next_{0};  // tile of the run in progress
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t turn_ = 0;  // kInOrder: the tile to be shown next. Guarded by mutex_, like the next
  Status first_error_;
};

}  // namespace sluice::offload
