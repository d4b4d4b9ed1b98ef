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

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "aio/power_loss.h"

namespace sluice::aio {

// SparsePages: a file's bytes in memory; bytes that were never written cost nothing.
//
// Copies share their pages until one of them is written. So a simulated drive can hold the present
// and the durable content of a file for little more than the cost of one. Holes read as zeros, and
// zeros written into a hole do not fill it.
class SparsePages {
 public:
  static constexpr std::uint64_t kPageBytes = 64 << 10;

  void write(std::uint64_t offset_bytes, std::span<const std::byte> data);
  void read(std::uint64_t offset_bytes, std::span<std::byte> out) const;
  // Makes everything from `offset_bytes` on a hole.
  void erase_from(std::uint64_t offset_bytes);

 private:
  using Page = std::array<std::byte, kPageBytes>;
  Page& writable_page(std::uint64_t number);

  std::map<std::uint64_t, std::shared_ptr<Page>> pages_;
};

// ExtentSet: the bytes of a file that have disk space, as disjoint ranges of whole 4096-byte
// blocks.
//
// Adjacent ranges merge, so a file that was allocated in one piece is one entry, however large.
class ExtentSet {
 public:
  static constexpr std::uint64_t kBlockBytes = 4096;

  // The bytes that add() of the same range would add.
  std::uint64_t missing_bytes(std::uint64_t begin_bytes, std::uint64_t end_bytes) const;
  void add(std::uint64_t begin_bytes, std::uint64_t end_bytes);
  // Removes every block that is entirely beyond `end_bytes`.
  void cut(std::uint64_t end_bytes);
  std::uint64_t total_bytes() const { return total_bytes_; }

 private:
  std::map<std::uint64_t, std::uint64_t> ends_;  // begin -> end
  std::uint64_t total_bytes_ = 0;
};

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
  void lose_power(const PowerLossModel& model);

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
  static void apply_part(const Change& write, PowerLossModel::Range part, State& state);
  void make_oldest_durable();

  const Options options_;
  State present_;
  State durable_;
  std::deque<Change> pending_;  // oldest first
  std::uint64_t unsynced_bytes_ = 0;
};

}  // namespace sluice::aio
