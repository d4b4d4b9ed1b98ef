// SimFileData: one file of a simulated drive: what programs see of it, what would survive a power
// loss for certain, and between the two the changes that no sync has covered yet.
//
// Every change carries a sequence number, given by the drive, ascending. sync(n) makes the changes
// up to n durable, sizes included. Where more than write_cache_bytes of writes are waiting, the
// oldest become durable by themselves, as a drive's cache drains: so even a program that never
// syncs needs bounded memory.
//
// Threads: the drive's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "aio/extent_set.h"
#include "aio/power_loss.h"
#include "aio/sparse_pages.h"

namespace sluice::aio {

class SimFileData {
 public:
  struct Options {
    bool keep_data = true;  // false: sizes and space only
    std::uint64_t write_cache_bytes = 0;
  };
  explicit SimFileData(const Options& options) : options_(options) {}

  // Content, size and space at one moment.
  struct State {
    SparsePages pages;
    ExtentSet space;
    std::uint64_t size_bytes = 0;
  };
  const State& present() const { return present_; }
  const State& durable() const { return durable_; }

  // `data` may be empty (length counts) where data is not kept.
  struct Write {
    std::uint64_t offset_bytes = 0;
    std::uint64_t length_bytes = 0;
    std::span<const std::byte> data;
  };
  // A write that reaches beyond the end is two changes, the bytes and the growth; both carry
  // `sequence`.
  void write(std::uint64_t sequence, const Write& write);
  void set_size(std::uint64_t sequence, std::uint64_t size_bytes);
  void allocate(std::uint64_t sequence, std::uint64_t size_bytes);
  void sync(std::uint64_t up_to_sequence);

  // Adds the sequence numbers of size changes that are not durable.
  void list_pending_metadata(std::vector<std::uint64_t>& into) const;
  std::uint64_t unsynced_bytes() const { return unsynced_bytes_; }

  // The present and the durable view become what the random choices leave.
  void lose_power(const PowerDice& dice);

  // How the drive's free space counts this file: while it has a name or is open.
  bool linked = false;
  int handles = 0;

 private:
  enum class Kind : std::uint8_t { kWrite, kGrow, kSetSize, kAllocate };
  struct Change {
    std::uint64_t sequence;
    Kind kind;
    std::uint64_t begin_bytes;  // of a write
    std::uint64_t end_bytes;    // of a write; else the size
    std::vector<std::byte> data;
  };
  void change(Change change);
  static void apply(const Change& change, State& state);
  static void apply_part(const Change& write, PowerDice::Range part, State& state);
  void make_oldest_durable();

  const Options options_;
  State present_;
  State durable_;
  std::deque<Change> pending_;  // oldest first
  std::uint64_t unsynced_bytes_ = 0;
};

}  // namespace sluice::aio
