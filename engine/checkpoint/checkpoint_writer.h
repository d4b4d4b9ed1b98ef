// CheckpointWriter: one checkpoint, from the state as it arrives to a folder that is either whole
// or does not count. FORMAT.md says what is in it.
//
//   auto writer = CheckpointWriter::begin(queue, folder.path_of(step), specs, {});
//   for each range, in flat order: writer->append({.parameter = name, ...});
//   writer->commit(state);
//
// The files of all fields - master weights and both moments - are written concurrently, and where
// there are several ranks each writes its own, at the same time (part_writer.h). The manifest is
// written last, when everything else is durable: its presence is what makes the checkpoint count,
// whatever happens before.
//
// All of it is written to `<folder>.new`, which counts once it has its manifest, and then takes the
// place of `<folder>`; settle_replacement() finishes what a kill left undone. So a folder that has
// its own name and no manifest was not left by a save.
//
// With options.replace an existing complete checkpoint stays until the new one is whole. What
// cannot be read there is set aside, with a warning, and never removed.
//
// Memory:  PartWriter's.
// Threads: one at a time; the queue's other users are not disturbed. `queue` must outlive it.
// Errors:  after a failed append() or commit() the writer can only be destroyed. Destroyed without
//          a successful commit() it removes what it made. begin(): kNoSpace leaves nothing behind;
//          kAlreadyExists without options.replace.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aio/io_queue.h"
#include "engine/checkpoint/checkpoint_manifest.h"
#include "engine/checkpoint/checkpoint_names.h"
#include "engine/checkpoint/checkpoint_state.h"
#include "engine/checkpoint/part_writer.h"
#include "engine/checkpoint/shard_plan.h"

namespace sluice::engine {

class CheckpointWriter {
 public:
  using Options = CheckpointOptions;

  // `parameters`: each under its name, in flat order; stored as F32 whatever their dtype, and their
  // moments as the options say.
  static Result<std::unique_ptr<CheckpointWriter>> begin(aio::IoQueue& queue,
                                                         const std::string& folder,
                                                         std::span<const TensorSpec> parameters,
                                                         const Options& options);
  // With others: this one is writer 0 of `plan`, which plan_checkpoint() made of their pieces. Once
  // it is there, each other begins a PartWriter of the same plan, folder and options; all of those
  // must be gone, in every process, before this one is destroyed without a successful commit().
  static Result<std::unique_ptr<CheckpointWriter>> begin_together(
      aio::IoQueue& queue, const std::string& folder, std::shared_ptr<const CheckpointPlan> plan,
      const Options& options);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // The next values in flat order, of writer 0. kInvalidArgument says which come next instead, or
  // which moment would lose bits.
  Status append(std::string_view parameter, const offload::ConstStateSlice& state);
  // After the last one, of writer 0: its files are durable.
  Status finish_part();
  // Of another writer, which has finished: PartWriter::checksums().
  Status add_part(int writer, std::span<const std::uint64_t> checksums);
  // After all of it: durable when it returns ok. kInvalidArgument says what is missing; kCorrupt:
  // a file of another writer is not there, or not whole.
  Status commit(const CheckpointState& state);

  std::uint64_t total_bytes() const { return total_bytes_; }  // of the files, except the manifest

 private:
  CheckpointWriter(aio::IoQueue& queue, std::string folder,
                   std::shared_ptr<const CheckpointPlan> plan, bool in_parts,
                   const Options& options);
  static Result<std::unique_ptr<CheckpointWriter>> begin(std::unique_ptr<CheckpointWriter> writer);
  Status prepare();
  void describe_parts();
  Status take_folder();
  Status check_space() const;
  Status check_other_parts() const;
  Status write_index();
  Status publish(const CheckpointState& state);
  Status fail(Status status);
  std::string path_in(std::string_view name) const;

  aio::IoQueue& queue_;
  const std::string folder_;  // the checkpoint's when all is done
  const std::shared_ptr<const CheckpointPlan> plan_;
  const bool in_parts_;  // written by several ranks, or as if
  const Options options_;
  const std::string target_;  // where it is written
  bool made_ = false;         // something in target_ is ours to remove
  bool committed_ = false;
  std::uint64_t total_bytes_ = 0;
  CheckpointManifest manifest_;       // grows as parts are finished
  std::vector<bool> has_part_;        // by writer
  std::unique_ptr<PartWriter> part_;  // null: none yet
  Status status_;
};

}  // namespace sluice::engine
