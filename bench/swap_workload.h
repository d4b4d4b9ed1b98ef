// SwapWorkload: a store of optimizer state, and whole steps over it.
//
// Memory:  the pinned buffers, and one record's gradient and parameters, shared by all records.
// Threads: one; the work inside a step runs on the executor's threads.
// Errors:  errors of the store and the pipeline; kCancelled after an interrupt.
// The destructor removes the store's files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "aio/executor.h"
#include "aio/io_queue.h"
#include "aio/page_memory.h"
#include "aio/pinned_pool.h"
#include "bench/aio_workload.h"
#include "bench/swap_options.h"
#include "offload/adamw/adamw_arrays.h"
#include "swap/state_store.h"
#include "swap/swap_pipeline.h"
#include "tools/support/interrupt.h"

namespace sluice::bench {

struct SwapStep {
  swap::SwapPipeline::Order order = swap::SwapPipeline::Order::kMixed;
  double seconds = 0;
  swap::SwapStats stats;

  double read_gb_per_s() const { return static_cast<double>(stats.bytes_read) / seconds / 1e9; }
  double write_gb_per_s() const { return static_cast<double>(stats.bytes_written) / seconds / 1e9; }
  double gb_per_s() const { return read_gb_per_s() + write_gb_per_s(); }
};

// For a record in memory, with all threads.
struct ChecksumCost {
  double alone_gb_per_s = 0;         // checked and sealed, nothing computed
  double seconds_a_record = 0;       // what checking and sealing add to the work
  double work_seconds_a_record = 0;  // without them
};

class SwapWorkload {
 public:
  // Allocates all memory and all space on the paths; nothing is written yet.
  static Result<std::unique_ptr<SwapWorkload>> create(const SwapBenchOptions& options);
  ~SwapWorkload();
  SwapWorkload(const SwapWorkload&) = delete;
  SwapWorkload& operator=(const SwapWorkload&) = delete;

  // Writes every record once. Not measured.
  Status fill(const tools::Interrupt& interrupt, const OnProgress& on_progress);
  Result<SwapStep> step(swap::SwapPipeline::Order order, const tools::Interrupt& interrupt,
                        const OnProgress& on_progress);
  Result<ChecksumCost> measure_checksums();

  aio::PinnedPool::Usage pinned() const { return pool_->usage(); }
  std::string backend_name() const { return std::string(backend_->name()); }
  Status remove();

 private:
  explicit SwapWorkload(const SwapBenchOptions& options) : options_(options) {}
  Status take_memory();
  Status make_store();
  void work_on_tile(std::uint64_t record_elements, int tile, std::span<std::byte> data) const;
  Status work_on_loan(swap::SwapPipeline::Loan& loan);
  Result<double> seconds_of(swap::RecordImage& image, bool check, bool work);

  const SwapBenchOptions options_;
  std::unique_ptr<aio::IoBackend> backend_;
  std::unique_ptr<aio::IoQueue> reads_;
  std::unique_ptr<aio::IoQueue> writes_;  // null: reads_ handles writes too
  std::unique_ptr<aio::Executor> executor_;
  std::unique_ptr<aio::Executor> one_thread_;  // for a tile
  std::unique_ptr<swap::StateStore> store_;
  std::unique_ptr<aio::PinnedPool> pool_;
  aio::PageMemory gradient_;
  aio::PageMemory parameters_;
  offload::AdamwScalars scalars_{};
};

}  // namespace sluice::bench
