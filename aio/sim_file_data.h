// SimFileData: one file of a simulated drive: its present content, the content that would certainly
// survive a power loss, and the changes in between that no sync has covered yet.
//
// Every change has a sequence number, assigned by the drive in ascending order. sync(n) makes the
// changes up to n durable, sizes included. If more than write_cache_bytes of writes are waiting,
// the oldest become durable by themselves, as when a drive's cache drains. So even a program that
// never syncs needs bounded memory.
//
// Threads: the drive's thread.
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

  // `data` may be empty if data is not kept; then only the length counts.
  struct Write {
    std::uint64_t offset_bytes = 0;
    std::uint64_t length_bytes = 0;
    std::span<const std::byte> data;
  };
  // A write beyond the end is two changes, the bytes and the growth; both have `sequence`.
  void write(std::uint64_t sequence, const Write& write);
  void set_size(std::uint64_t sequence, std::uint64_t size_bytes);
  void allocate(std::uint64_t sequence, std::uint64_t size_bytes);
  void sync(std::uint64_t up_to_sequence);

  // Appends the sequence numbers of size changes that are not durable.
  void list_pending_metadata(std::vector<std::uint64_t>& into) const;
  std::uint64_t unsynced_bytes() const { return unsynced_bytes_; }

  // Sets the present and the durable view to what survives by the random choices.
  void lose_power(const PowerDice& dice);

  // A file takes space on the drive while it has a name or is open.
  bool linked = false;
  int handles = 0;

 private:
  enum class Kind : std::uint8_t { kWrite, kGrow, kSetSize, kAllocate };
  struct Change {
    std::uint64_t sequence;
    Kind kind;
    std::uint64_t begin_bytes;  // for a write
    std::uint64_t end_bytes;    // for a write; else the size
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
