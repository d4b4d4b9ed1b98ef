// SimulatedDrives: the NVMe traffic of training steps on a drive in virtual time. The traffic is
// the run's own: a StateStore and a SwapPipeline read and write the records of the optimizer's
// state through IoQueues with the run's block size and queue depth. Their backend is a SimDrive
// with the measured rates, which stores no data. Each unit's parameters are one record of a second
// store, its inputs are several records of a third, and its gradient is one of a fourth.
//
// Memory:  the pipeline's buffers, as in the run; and one buffer each for reading and for writing
//          parameters, and the same for inputs and for gradients.
// Threads: the loop's.
// Errors:  those of the store and the pipeline.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "aio/io_queue.h"
#include "aio/pinned_pool.h"
#include "aio/result.h"
#include "aio/sim_drive.h"
#include "aio/virtual_loop.h"
#include "offload/planner/machine_speeds.h"
#include "swap/state_store.h"
#include "swap/swap_pipeline.h"

namespace sluice::engine {

class SimulatedDrives {
 public:
  // What units have in a store of their own: each has `of_unit` records of one size, one after
  // another.
  struct UnitRecords {
    std::vector<swap::RecordSpec> records;  // empty: nothing is on the drives
    std::vector<int> first;                 // by unit: its first record, if it has any
    int of_unit = 1;
  };
  struct Options {
    offload::DuplexRates rates;
    aio::IoQueue::Options queue;
    std::vector<swap::RecordSpec> state;  // in the order of a step
    std::uint64_t state_chunk_bytes = 1 << 20;
    swap::SwapPipeline::Options swap;
    UnitRecords params;
    UnitRecords inputs;
    UnitRecords gradients;
  };
  // Returns after every record was written once.
  static Result<std::unique_ptr<SimulatedDrives>> create(aio::VirtualLoop& loop,
                                                         const Options& options);
  ~SimulatedDrives();
  SimulatedDrives(const SimulatedDrives&) = delete;
  SimulatedDrives& operator=(const SimulatedDrives&) = delete;

  // Expects all records of state again, as at the start of backward.
  void announce();
  // The next record, once it has been read.
  Result<swap::SwapPipeline::Loan> next() { return pipeline_->next(); }
  // Writes the record back, without computing it.
  void write(swap::SwapPipeline::Loan loan);
  // Waits for all writes.
  Status drain();

  // At most one transfer of each kind may be in progress.
  enum class Transfer : std::uint8_t {
    kReadParams,
    kWriteParams,
    kReadInputs,
    kWriteInputs,
    kReadGradients,
    kWriteGradients
  };
  static constexpr std::size_t kTransfers = 6;
  // Moves the unit's first records, as many as have so many bytes.
  void transfer(Transfer what, int unit, double bytes, std::function<void()> done);
  const Status& status() const { return status_; }  // of the first failed transfer

  bool busy() const { return drive_->ops_in_flight() > 0; }
  std::uint64_t bytes_read() const { return bytes_read_ + swap_stats().bytes_read; }
  std::uint64_t bytes_written() const { return bytes_written_ + swap_stats().bytes_written; }

 private:
  struct Units {
    UnitRecords records;
    std::unique_ptr<aio::PinnedPool> pool;
    std::unique_ptr<swap::StateStore> store;
  };
  // Transfers records one after another.
  struct Line {
    SimulatedDrives* owner = nullptr;
    Units* units = nullptr;
    bool reads = false;
    swap::RecordIo io;
    aio::PinnedPool::Lease buffer;
    swap::RecordId next = 0;
    swap::RecordId end = 0;
    std::function<void()> done;
  };

  SimulatedDrives() = default;
  Status make_state(const Options& options);
  Status make_lines(const UnitRecords& records, const char* run, Transfer first, Units& units);
  void wait_for_lines();
  static void go_on(Line& line);
  Status write_all(swap::StateStore& store, std::span<std::byte> buffer);
  swap::SwapStats swap_stats() const {
    return pipeline_ != nullptr ? pipeline_->stats() : swap::SwapStats{};
  }
  static void on_record_done(swap::RecordIo& io, void* context) noexcept;

  // Ordered by dependency.
  std::unique_ptr<aio::SimDrive> drive_;
  std::unique_ptr<aio::IoQueue> reads_;
  std::unique_ptr<aio::IoQueue> writes_;
  std::unique_ptr<aio::PinnedPool> state_pool_;
  std::unique_ptr<swap::StateStore> state_;
  Units params_;
  Units inputs_;
  Units gradients_;
  std::unique_ptr<swap::SwapPipeline> pipeline_;
  std::vector<swap::RecordId> order_;
  std::array<Line, kTransfers> lines_;
  Status status_;
  std::uint64_t bytes_read_ = 0;
  std::uint64_t bytes_written_ = 0;
};

}  // namespace sluice::engine
