// CheckpointWriter: writes one checkpoint from the state as it arrives. The result is either
// complete or invalid. FORMAT.md describes the content.
//
//   auto writer = CheckpointWriter::begin(queue, folder.path_of(step), specs, {});
//   for each range, in flat order: writer->append({.parameter = name, ...});
//   writer->commit(state);
//
// The files of all fields (master weights and both moments) are written concurrently. With several
// ranks each writes its own files, at the same time (part_writer.h). The manifest is written last,
// when everything else is durable: a checkpoint without it is invalid. State in a frozen store
// stays there, and the manifest names its records (stored_records.h).
//
// All files are written to `<folder>.new`, which is valid once it has its manifest, and then
// replaces `<folder>`; settle_replacement() completes this after a kill. A folder with its final
// name and no manifest was therefore not left by a save.
//
// With options.replace an existing complete checkpoint stays until the new one is complete. An
// unreadable checkpoint is set aside with a warning, and never removed.
//
// Memory:  that of PartWriter.
// Threads: one at a time; the queue may have other users. `queue` must outlive this.
// Errors:  after a failed append() or commit() the writer can only be destroyed. Its destructor
//          removes its files unless commit() succeeded. begin(): kNoSpace, after which no file
//          remains; kAlreadyExists without options.replace.
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
#include "engine/checkpoint/stored_records.h"

namespace sluice::engine {

class CheckpointWriter {
 public:
  using Options = CheckpointOptions;

  // `parameters`: named, in flat order. They are stored as F32 whatever their dtype, and their
  // moments as options.moments.
  static Result<std::unique_ptr<CheckpointWriter>> begin(aio::IoQueue& queue,
                                                         const std::string& folder,
                                                         std::span<const TensorSpec> parameters,
                                                         const Options& options);
  // For several writers: this one is writer 0 of `plan`, which plan_checkpoint() made from their
  // pieces. After this call, each other writer begins a PartWriter with the same plan, folder and
  // options. The others must be gone, in every process, before this is destroyed without a
  // successful commit().
  static Result<std::unique_ptr<CheckpointWriter>> begin_together(
      aio::IoQueue& queue, const std::string& folder, std::shared_ptr<const CheckpointPlan> plan,
      const Options& options);
  // For a checkpoint whose other state stays in `records`, a frozen store: this writes the pieces
  // `written`, which may be none. kInvalidArgument: together they are not the whole state.
  static Result<std::unique_ptr<CheckpointWriter>> begin_beside_store(
      aio::IoQueue& queue, const std::string& folder, std::span<const TensorSpec> parameters,
      const StatePieces& written, StoredRecords records, const Options& options);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Appends the next values of writer 0, in flat order. kInvalidArgument names the values expected
  // instead, or the moment that would lose bits.
  Status append(std::string_view parameter, const offload::ConstStateSlice& state);
  // After the last append(): makes writer 0's files durable.
  Status finish_part();
  // Adds the checksums of another writer that has finished: PartWriter::checksums().
  Status add_part(int writer, std::span<const std::uint64_t> checksums);
  // After all parts: the checkpoint is durable if this returns ok. kInvalidArgument says what is
  // missing. kCorrupt: a file of another writer is missing or truncated.
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
  const std::string folder_;  // the final name
  const std::shared_ptr<const CheckpointPlan> plan_;
  const bool in_parts_;  // in the format of several ranks, and of checkpoints with records
  const Options options_;
  const std::string target_;  // where files are written
  bool made_ = false;         // something in target_ was created by us
  bool committed_ = false;
  std::uint64_t total_bytes_ = 0;
  CheckpointManifest manifest_;       // files are added as parts finish
  std::vector<bool> has_part_;        // by writer
  std::unique_ptr<PartWriter> part_;  // null before begin()
  Status status_;
};

}  // namespace sluice::engine
