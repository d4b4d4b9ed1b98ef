// NvmeState: the optimizer state of the nvme tier: a state store, the pinned buffers for its
// records, and the pipeline between them.
//
// A sub-group's state is cut into records of at most record_elements, named after its unit; a tile
// is a chunk. A step or a snapshot is one pass over all records in ascending order, announced to
// the pipeline as a whole.
//
// For checkpoints in place the store has two places for each record, and a record of parameters for
// each record of state that needs one (frozen_state.h). These are written only for a freeze.
//
// Threads: one at a time; stats() from any.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aio/executor.h"
#include "aio/io_queue.h"
#include "aio/pinned_pool.h"
#include "offload/state/frozen_state.h"
#include "offload/state/tier_state.h"
#include "swap/record_writer.h"
#include "swap/state_store.h"
#include "swap/swap_pipeline.h"

namespace sluice::offload {

class NvmeState final : public TierState {
 public:
  struct Options {
    StateKind kind;
    std::uint64_t record_elements;  // a multiple of kTileElements
    swap::SwapPipeline::Options swap;
    swap::StateStore::Options store;
    aio::MemoryLock lock;
    bool huge_pages;
    bool in_place = false;
    std::optional<swap::FrozenStore> adopt = {};
  };
  struct Queues {
    aio::IoQueue* reads;
    aio::IoQueue* writes;
  };
  struct Plan {
    std::uint64_t buffer_bytes = 0;  // what create() maps and pins
    std::uint64_t store_bytes = 0;
  };
  static Result<Plan> plan(const Options& options, std::span<const UnitSpec> units,
                           std::span<const SubGroup> placement);
  // Creates the store. If anything fails, no files remain.
  static Result<std::unique_ptr<NvmeState>> create(const Options& options,
                                                   std::span<const UnitSpec> units,
                                                   std::span<const SubGroup> placement,
                                                   Queues queues, aio::Executor& executor);

  // Allows the next pass to start reading; further calls have no effect until that pass has begun.
  void announce();
  void begin_pass();
  // Skips the rest of a read-only pass.
  Status abandon_pass();
  Status update(const UnitUpdate& update) override;
  Status snapshot(const SubGroup& sub_group, const UnitArrays& arrays, StateSweep& sweep) override;

  // Call before amend() of these units, in ascending order; records announced earlier are read
  // again later.
  Status begin_amend(std::span<const int> units);
  Status amend(const SubGroup& sub_group, const UnitArrays& arrays, StateSweep& sweep) override;

  // Call before and after restore(); nothing may be in progress.
  Status begin_restore();
  Status end_restore();
  Status restore(const SubGroup& sub_group, const UnitArrays& arrays, StateSweep& sweep) override;

  // Waits until every write has completed.
  Status drain();
  // Ends what is in progress and removes the files, unless a generation is frozen in them.
  Status remove();

  // ---- in place
  bool keeps_parameters() const { return parameter_pool_ != nullptr; }
  // Writes the parameters of a sub-group as records. Nothing may be in progress.
  Status store_parameters(const SubGroup& sub_group, const UnitArrays& arrays);
  // After drain(), when the records of parameters are those of the state.
  Result<FrozenState> freeze(const std::string& checkpoint);
  swap::StateStore& store() { return *store_; }

  swap::SwapStats stats() const;

 private:
  // A record.
  struct Part {
    int unit;
    std::uint64_t first_element;  // in the unit's shard
    std::uint64_t elements;
    int group;
    swap::RecordId id;
  };

  NvmeState(const Options& options, aio::Executor& executor)
      : kind_(options.kind),
        swap_options_(options.swap),
        executor_(executor),
        adopts_(options.adopt.has_value()) {}
  Status make_store(const Options& options, std::vector<swap::RecordSpec> specs, Queues queues);
  Status make_parameter_pool(const Options& options, const swap::StoreLayout& layout,
                             Queues queues);
  swap::RecordId parameters_of(const Part& part) const {
    return static_cast<swap::RecordId>(all_.size()) + part.id;
  }
  Status store_parameters(const Part& part, const void* param);
  Status adopt_parameters(const Part& part, void* param);
  Status make_pipeline();
  void end_pipeline();
  StateSweep::Tile tile_of(const Part& part, std::span<std::byte> payload, std::uint64_t index,
                           const UnitArrays& arrays) const;
  // Reads, checks and sweeps the pass's next record, which belongs to `part`.
  Result<swap::SwapPipeline::Loan> sweep_next(int unit, const Part& part, const UnitArrays& arrays,
                                              StateSweep& sweep);
  void update_tile(const Part& part, int tile, std::span<std::byte> data,
                   const UnitUpdate& update) const;

  const StateKind kind_;
  const swap::SwapPipeline::Options swap_options_;
  aio::Executor& executor_;
  UnitParts<Part> parts_;
  std::vector<swap::RecordId> all_;   // the records of a whole pass
  std::vector<swap::RecordId> some_;  // the records of the units being amended
  std::unique_ptr<swap::StateStore> store_;
  std::unique_ptr<aio::PinnedPool> pool_;
  std::unique_ptr<aio::PinnedPool> parameter_pool_;  // null: there are no records of parameters
  std::unique_ptr<swap::RecordWriter> parameter_writer_;
  std::unique_ptr<swap::RecordWriter> writer_;  // during a restore
  bool announced_ = false;
  bool adopts_ = false;  // the next restore() finds the state in the store

  mutable std::mutex pipeline_mutex_;  // held to replace it, and by stats()
  std::unique_ptr<swap::SwapPipeline> pipeline_;
};

}  // namespace sluice::offload
