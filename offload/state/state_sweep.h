// StateSweep: shows the state of many tiles, in the canonical form, to the caller of restore(),
// snapshot() or amend(), using all threads of an executor.
//
// Each thread has its own canonical tile. For a restore it zeroes the tile, lets the visitor fill
// it and packs it into the tier's form. For a snapshot it unpacks the tier's state and lets the
// visitor read it; amending does both. The caller says how the visitor may be called:
// kInOrder   one call at a time, tiles in ascending order; the work around the calls runs in
//            parallel. Calls come from any thread of the executor.
// kAnyOrder  several calls at once, in any order.
//
// Memory:  at most bytes_of(threads), allocated as tiles come; freed by the destructor.
// Threads: run() from one thread, with the executor otherwise unused.
// Errors:  after its first error the visitor is not called again: run() returns that error once no
//          thread is working any longer, and every later run() returns it too.
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
  // More threads would only wait for memory bandwidth.
  static constexpr int kMaxThreads = 24;
  static constexpr std::uint64_t bytes_of(int threads) {
    return static_cast<std::uint64_t>(threads) * kStateFields.size() * sizeof(float) *
           kTileElements;
  }

  enum class Direction : std::uint8_t {
    kRestore,
    kSnapshot,
    kAmend,  // shows a tile's values, then packs it again
  };
  // The visitor; the slice covers elements of the unit.
  using Visit = std::function<Status(int unit, const StateSlice& slice)>;
  // All arguments must outlive the sweep. `units`: their first elements are what the slices count
  // from. `rounding`: for kRestore, rounds values that moments stored as bf16 cannot represent.
  StateSweep(aio::Executor& executor, const Visit& visit, Direction direction, Calls calls,
             std::span<const UnitSpec> units, const MomentSeed& rounding = {});
  StateSweep(const StateSweep&) = delete;
  StateSweep& operator=(const StateSweep&) = delete;

  int threads() const { return threads_; }

  // All of a tile's arrays, in host memory, without the gradient.
  struct Tile {
    std::uint64_t first_element = 0;  // in the unit's shard
    std::uint64_t elements = 0;
    AdamwArrays arrays;
  };
  // Consecutive tiles of one unit. `at` is called once for each tile, on any thread, before the
  // tile is read or written.
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
  std::uint64_t turn_ = 0;  // kInOrder: the next tile to show. Guarded by mutex_, like the next
  Status first_error_;
};

}  // namespace sluice::offload
