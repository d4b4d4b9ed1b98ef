#include "engine/run/run_checkpoints.h"

#include <chrono>
#include <utility>

#include "aio/check.h"
#include "aio/clock.h"
#include "aio/log.h"
#include "engine/budget/stripe_plan.h"
#include "engine/checkpoint/checkpoint_writer.h"
#include "engine/checkpoint/run_directory.h"
#include "engine/exchange/stored_shape.h"
#include "engine/run/stored_state.h"

namespace sluice::engine {
namespace {

std::int64_t now_ns() { return SteadyClock().now_ns(); }

}  // namespace

std::uint64_t RunCheckpoints::image_bytes(const ModelLayout& model, DType moments,
                                          const offload::RankPart& ranks) {
  return aio::PageMemory::mapped_bytes(StateImage::bytes_for(model, ranks, moments));
}

RunCheckpoints::RunCheckpoints(SavedRun& run, aio::IoQueue& queue, const Options& options)
    : run_(run), queue_(queue), options_(options) {}

Result<std::unique_ptr<RunCheckpoints>> RunCheckpoints::create(SavedRun& run, aio::IoQueue& queue,
                                                               const Options& options) {
  std::unique_ptr<RunCheckpoints> checkpoints(new RunCheckpoints(run, queue, options));
  if (!options.background) return checkpoints;
  if (run.has_other_ranks()) {
    checkpoints->copies_ = run.copy_save();
    SLUICE_CHECK(checkpoints->copies_ != nullptr, "a run that saves in the background");
    SLUICE_RETURN_IF_ERROR(checkpoints->copies_->make_copies());
  } else {
    SLUICE_ASSIGN_OR_RETURN(checkpoints->image_, StateImage::create(run));
  }
  return checkpoints;
}

RunCheckpoints::~RunCheckpoints() { wait(); }

Status RunCheckpoints::write_files(const Plan& plan, const Source& source,
                                   SavedCheckpoint& saved) const {
  CheckpointFolder folder(queue_, folder_of(options_.directory));
  saved.path = folder.path_of(saved.step);
  SLUICE_RETURN_IF_ERROR(queue_.backend().files().make_directories(folder.path()));
  if (run_.saves_in_place()) return save_in_place(plan, saved);
  if (run_.has_other_ranks()) {
    SLUICE_ASSIGN_OR_RETURN(saved.bytes, run_.save_together(saved.path, plan.state));
    return {};
  }
  SLUICE_ASSIGN_OR_RETURN(
      const auto writer,
      CheckpointWriter::begin(queue_, saved.path, plan.parameters,
                              {.moments = stored_moments(run_.plan().types), .replace = true}));
  saved.bytes = writer->total_bytes();
  SLUICE_RETURN_IF_ERROR(
      source([&](const ParameterSpec& parameter, const offload::ConstStateSlice& state) {
        return writer->append(parameter.name, state);
      }));
  return writer->commit(plan.state);
}

// The store protects two generations until the new one is named, or is not going to be.
Status RunCheckpoints::save_in_place(const Plan& plan, SavedCheckpoint& saved) const {
  const RunState state = run_.settled_state();
  SLUICE_ASSIGN_OR_RETURN(StoredRecords records, state.freeze(from_the_root(saved.path)));
  records.placement = options_.placement;
  saved.in_place_bytes = records.total_bytes();
  Status written = write_beside_store(plan, state, records, saved);
  if (!written.ok()) {
    // The save may have failed after its manifest was there. If that is unclear, both
    // generations stay frozen, and the run ends at its next step.
    SLUICE_ASSIGN_OR_RETURN(const bool named, is_named(saved.path, records.store));
    SLUICE_RETURN_IF_ERROR(named ? state.optimizer->keep_frozen() : state.optimizer->drop_frozen());
    return written;
  }
  saved.pruned = tidy(saved);
  // The checkpoint is there, whether or not its store could be marked.
  Status marked = state.optimizer->keep_frozen();
  if (!marked.ok() && saved.pruned.ok())
    saved.pruned = std::move(marked).error().with_context("marking its store");
  return {};
}

Result<bool> RunCheckpoints::is_named(const std::string& folder,
                                      const swap::FrozenStore& store) const {
  for (const std::string& place : {folder, folder + std::string(kReplacementSuffix)}) {
    const auto manifest = read_checkpoint_manifest(queue_, place);
    if (!manifest.ok() && manifest.error().code() != ErrorCode::kNotFound) return manifest.error();
    if (manifest.ok() && manifest->records && manifest->records->store == store) return true;
  }
  return false;
}

Status RunCheckpoints::write_beside_store(const Plan& plan, const RunState& state,
                                          const StoredRecords& records,
                                          SavedCheckpoint& saved) const {
  SLUICE_ASSIGN_OR_RETURN(
      const auto writer,
      CheckpointWriter::begin_beside_store(
          queue_, saved.path, plan.parameters, state.pieces_beside_store(), records,
          {.moments = stored_moments(run_.plan().types), .replace = true}));
  saved.bytes = writer->total_bytes();
  SLUICE_RETURN_IF_ERROR(state.take_beside_store(
      [&](const ParameterSpec& parameter, const offload::ConstStateSlice& part) {
        return writer->append(parameter.name, part);
      }));
  return writer->commit(plan.state);
}

SavedCheckpoint RunCheckpoints::write(const Plan& plan, const Source& source) const {
  SavedCheckpoint saved;
  saved.step = plan.state.position.global_step;
  saved.status = check_directory();
  if (saved.status.ok()) saved.status = write_files(plan, source, saved);
  return ended(plan, std::move(saved));
}

SavedCheckpoint RunCheckpoints::ended(const Plan& plan, SavedCheckpoint saved) const {
  if (!saved.status.ok()) {
    if (Status there = check_directory(); !there.ok()) {  // it may have moved during the save
      saved.directory_lost =
          there.error().code() != ErrorCode::kInvalidArgument;  // else it is a link
      saved.status = std::move(there);
    }
  }
  saved.took_ns = now_ns() - plan.begin_ns;
  if (saved.status.ok() && !run_.saves_in_place()) saved.pruned = tidy(saved);
  return saved;
}

Status RunCheckpoints::check_directory() const {
  if (options_.check_directory) SLUICE_RETURN_IF_ERROR(options_.check_directory());
  return check_checkpoints_are_no_link(queue_.backend().files(), options_.directory);
}

Status RunCheckpoints::tidy(SavedCheckpoint& saved) const {
  if (options_.keep_last == 0) return {};
  CheckpointFolder folder(queue_, folder_of(options_.directory));
  SLUICE_ASSIGN_OR_RETURN(saved.removed, folder.prune(options_.keep_last, saved.step,
                                                      options_.keep_best, run_.saves_in_place()));
  return {};
}

Status RunCheckpoints::save(const Scores& scores) {
  const std::int64_t begin_ns = now_ns();
  wait();
  Plan plan{.state = run_.checkpoint_state(),
            .parameters = parameter_specs(run_.model(), DType::kF32),
            .begin_ns = begin_ns};
  plan.state.loss = scores.loss;
  plan.state.validation_loss = scores.validation_loss;
  plan.state.evaluations = scores.evaluations;
  if (copies_ != nullptr) return save_copies(plan);
  if (image_ == nullptr) {
    SavedCheckpoint saved = write(plan, [this](const auto& take) { return run_.take_state(take); });
    saved.stopped_ns = now_ns() - begin_ns;
    finished_.push_back(std::move(saved));
    return {};
  }
  SLUICE_RETURN_IF_ERROR(image_->copy(run_));
  stopped_ns_ = now_ns() - begin_ns;
  going_on_ = std::async(std::launch::async, [this, plan = std::move(plan)] {
    return write(plan, [this](const auto& take) { return image_->replay(take); });
  });
  return {};
}

Status RunCheckpoints::begin_copies(SavedCheckpoint& saved) const {
  SLUICE_RETURN_IF_ERROR(check_directory());
  CheckpointFolder folder(queue_, folder_of(options_.directory));
  saved.path = folder.path_of(saved.step);
  SLUICE_RETURN_IF_ERROR(queue_.backend().files().make_directories(folder.path()));
  return copies_->begin(saved.path);
}

Status RunCheckpoints::save_copies(const Plan& plan) {
  SLUICE_RETURN_IF_ERROR(copies_->copy());
  SavedCheckpoint saved{.step = plan.state.position.global_step};
  saved.status = begin_copies(saved);
  const bool has_begun = saved.status.ok();
  if (!has_begun) saved = ended(plan, std::move(saved));
  saved.stopped_ns = now_ns() - plan.begin_ns;
  if (has_begun)
    copies_going_on_ = {plan, std::move(saved)};
  else
    finished_.push_back(std::move(saved));
  return {};
}

std::vector<SavedCheckpoint> RunCheckpoints::finished() {
  if (copies_going_on_ && copies_->is_written()) wait();
  if (going_on_.valid() && going_on_.wait_for(std::chrono::seconds(0)) == std::future_status::ready)
    wait();
  return std::exchange(finished_, {});
}

Status RunCheckpoints::prune() {
  if (options_.keep_last == 0) return {};
  CheckpointFolder folder(queue_, folder_of(options_.directory));
  const std::int64_t step = run_.checkpoint_state().position.global_step;
  SLUICE_ASSIGN_OR_RETURN(
      const auto going,
      folder.beyond(options_.keep_last, step, options_.keep_best, run_.saves_in_place()));
  if (going.empty()) return {};
  std::string names;
  for (const CheckpointEntry& entry : going) names += (names.empty() ? "" : ", ") + entry.name;
  log::info("run.keep_last is " + std::to_string(options_.keep_last) + ": removing " + names +
            " from " + folder.path());
  return folder.prune(options_.keep_last, step, options_.keep_best, run_.saves_in_place()).status();
}

void RunCheckpoints::wait() {
  if (copies_going_on_) {
    CopiesSave save = *std::exchange(copies_going_on_, {});
    auto bytes = copies_->end(save.plan.state);
    save.saved.status = bytes.status();
    if (bytes.ok()) save.saved.bytes = *bytes;
    finished_.push_back(ended(save.plan, std::move(save.saved)));
  }
  if (!going_on_.valid()) return;
  SavedCheckpoint saved = going_on_.get();
  saved.stopped_ns = stopped_ns_;
  finished_.push_back(std::move(saved));
}

}  // namespace sluice::engine
