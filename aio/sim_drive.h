// SimDrive: a drive in memory and virtual time, with configurable speed, that can lose power.
//
// Timing. An op waits, first come first served, for one of `depth` service slots. There it waits
// for its latency; then its bytes pass a pipe that serves one op at a time at the bandwidth; then
// it completes and frees the slot. With half_duplex reads and writes share one pipe (and a change
// of direction costs turnaround_us), else each has its own. A sync takes a slot for sync_us and
// passes no pipe. So D equal ops of B bytes kept in flight move
//     min(bandwidth, min(D, depth) * B / (latency + B / bandwidth)).
// Everything depends only on the options, the seed and the order of calls. Calls of files() take no
// time.
//
// Data. A write takes the caller's bytes and becomes visible when it completes; a read sees writes
// that have completed before it. Bytes that were never written read as zeros and cost no memory.
// Misaligned transfers of direct files return -EINVAL. Writes beyond the capacity return -ENOSPC
// and change nothing.
//
// Power. power_loss() applies its policy (power_loss.h) to everything that was not durable. Ops in
// flight, and all ops until restore_power(), fail with EIO. Bytes and size of a file are durable
// once a kSync that covers them has completed (as of the sync's submission), and names after
// sync_directory() of their folder. A file opened before the power loss fails permanently.
//
// Memory:  pages of 64 KiB that were written. At most write_cache_bytes of unsynced writes per
//          file; beyond that the oldest become durable. submit() allocates a little, as this is a
//          simulation.
// Threads: the loop's thread. Completions run in pump(), which runs one event of the loop, for this
//          drive or another; several drives may share a loop.
// Shutdown: the destructor runs the loop until the ops in flight are done. Close files first.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "aio/io_backend.h"
#include "aio/sim_file_system.h"
#include "aio/virtual_loop.h"

namespace sluice::aio {

class SimDrive final : public IoBackend {
 public:
  struct Options {
    double read_gb_per_s = 7.0;
    double write_gb_per_s = 5.0;
    bool half_duplex = true;
    double turnaround_us = 0.0;  // half duplex: between a read and a write
    double read_latency_us = 70.0;
    double write_latency_us = 20.0;
    double latency_jitter = 0.0;  // latencies are multiplied by 1 - jitter .. 1 + jitter
    double sync_us = 300.0;
    int depth = 64;
    std::uint64_t capacity_bytes = std::uint64_t{1} << 40;
    std::uint32_t sector_bytes = 4096;  // alignment of direct transfers and their memory; 1: none
    std::uint64_t write_cache_bytes = std::uint64_t{1} << 30;  // unsynced, per file
    bool keep_data = true;  // false: for planning; reads leave their buffer unchanged
    std::uint64_t seed = 1;
  };
  // kInvalidArgument names the invalid option; the constructor checks the same.
  static Status validate(const Options& options);

  SimDrive(VirtualLoop& loop, const Options& options);
  ~SimDrive() override;

  std::string_view name() const override { return "sim"; }
  FileSystem& files() override { return files_; }
  const Clock& clock() const override { return loop_; }
  void submit(std::span<IoOp* const> ops) noexcept override;
  PumpResult pump() override;

  int ops_in_flight() const { return static_cast<int>(in_flight_.size()); }

  // ---- power

  void power_loss(PowerLoss policy, std::uint64_t seed);
  void restore_power();
  bool powered() const { return files_.powered(); }

  // Loses power at the n-th operation from now (1: the next one), n > 0. Operations are reads,
  // writes and syncs at submission, and calls of files() that change something or make it durable
  // (including opens that create a file). The n-th operation itself is interrupted: a write or a
  // rename may or may not have happened, and a sync guarantees nothing.
  void fail_after_ops(std::uint64_t n, PowerLoss policy, std::uint64_t seed);
  std::uint64_t operations() const { return operations_; }  // counted as above, from the start

  enum class View : std::uint8_t { kPresent, kDurable };
  // A file's bytes as programs see them now, or as kDropUnsynced would leave them; empty if that
  // view has no such file.
  std::optional<std::vector<std::byte>> content(const std::string& path, View view) const;
  std::uint64_t unsynced_bytes() const { return files_.unsynced_bytes(); }
  std::uint64_t used_bytes() const { return files_.used_bytes(); }

  struct DirectionStats {
    std::uint64_t ops = 0;  // completed without error
    std::uint64_t bytes = 0;
    std::int64_t pipe_busy_ns = 0;  // time in the pipe
  };
  struct Stats {
    DirectionStats read;
    DirectionStats write;
    std::uint64_t syncs = 0;
    std::uint64_t failed_ops = 0;
    std::int64_t busy_ns = 0;  // time with an op in a slot
    int max_in_service = 0;
  };
  Stats stats() const;

 private:
  enum class Stage : std::uint8_t { kDelayed, kWaiting, kServed, kFailing };
  struct InFlight {
    IoOp* op;
    Stage stage;
    int error = 0;               // kFailing: the result
    std::uint64_t sync_end = 0;  // a sync covers changes up to this one
  };
  struct Pipe {
    double free_ns = 0;
    bool last_was_write = false;
    bool used = false;
  };
  using Ticket = std::uint64_t;

  void submit_one(IoOp& op);
  void after(std::int64_t delay_ns, void (SimDrive::*step)(Ticket), Ticket ticket);
  void arrive(Ticket ticket);
  void fill_slots();
  void enter_pipe(Ticket ticket);
  void finish(Ticket ticket);
  std::int64_t carry_out(const InFlight& done);
  std::int64_t latency_ns(Ticket ticket, IoKind kind) const;
  bool count_operation();

  VirtualLoop& loop_;
  const Options options_;
  SimFileSystem files_;
  std::map<Ticket, InFlight> in_flight_;
  std::deque<Ticket> waiting_;
  std::array<Pipe, 2> pipes_;  // half duplex: the first serves both
  Ticket next_ticket_ = 1;
  int in_service_ = 0;
  int events_pending_ = 0;  // in the loop, for this drive
  std::int64_t busy_since_ns_ = 0;
  std::uint64_t last_write_ = 0;  // sequence number of the last write
  Stats stats_;

  struct Trigger {
    std::uint64_t at_operation;
    PowerLoss policy;
    std::uint64_t seed;
  };
  std::optional<Trigger> trigger_;
  std::uint64_t operations_ = 0;
};

}  // namespace sluice::aio
