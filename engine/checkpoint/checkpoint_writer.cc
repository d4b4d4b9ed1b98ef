#include "engine/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <utility>

#include "aio/log.h"
#include "aio/small_file.h"
#include "aio/units.h"
#include "engine/checkpoint/checkpoint_entry.h"
#include "engine/checkpoint/remove_checkpoint.h"
#include "engine/weights/quoting.h"
#include "engine/weights/safetensors_index.h"

namespace sluice::engine {
namespace {

constexpr std::uint64_t kManifestBytesOfChunk = 16;  // its checksum
constexpr std::uint64_t kSmallFilesBytes = 64 * kKiB;

Error invalid(std::string what) { return Error(ErrorCode::kInvalidArgument, std::move(what)); }

// Creates the folder and its parents, and makes their names durable.
Status make_durable_folder(aio::FileSystem& files, const std::string& folder) {
  std::vector<std::string> made = {folder};
  for (std::string parent = parent_folder(folder);; parent = parent_folder(parent)) {
    SLUICE_ASSIGN_OR_RETURN(const bool there, files.exists(parent));
    if (there) break;
    made.push_back(parent);
  }
  SLUICE_RETURN_IF_ERROR(files.make_directories(folder));
  for (const std::string& path : made)
    SLUICE_RETURN_IF_ERROR(files.sync_directory(parent_folder(path)));
  return {};
}

// A folder can be replaced if that loses no foreign file.
Status check_replaceable(aio::FileSystem& files, const std::string& folder) {
  SLUICE_ASSIGN_OR_RETURN(const auto names, files.list(folder));
  for (const std::string& name : names) {
    if (!is_checkpoint_file(name))
      return Error(ErrorCode::kAlreadyExists,
                   "the checkpoint " + folder + " cannot be replaced: there is " + in_quotes(name) +
                       " in it, which is not part of a checkpoint. Move it or the folder away");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<CheckpointWriter>> CheckpointWriter::begin(
    aio::IoQueue& queue, const std::string& folder, std::span<const TensorSpec> parameters,
    const Options& options) {
  SLUICE_RETURN_IF_ERROR(check_options(options));
  SLUICE_ASSIGN_OR_RETURN(CheckpointPlan plan, plan_checkpoint(parameters, options.shards()));
  return begin(std::unique_ptr<CheckpointWriter>(
      new CheckpointWriter(queue, folder, std::make_shared<const CheckpointPlan>(std::move(plan)),
                           /*in_parts=*/false, options)));
}

Result<std::unique_ptr<CheckpointWriter>> CheckpointWriter::begin_together(
    aio::IoQueue& queue, const std::string& folder, std::shared_ptr<const CheckpointPlan> plan,
    const Options& options) {
  SLUICE_RETURN_IF_ERROR(check_options(options));
  return begin(std::unique_ptr<CheckpointWriter>(
      new CheckpointWriter(queue, folder, std::move(plan), /*in_parts=*/true, options)));
}

Result<std::unique_ptr<CheckpointWriter>> CheckpointWriter::begin_beside_store(
    aio::IoQueue& queue, const std::string& folder, std::span<const TensorSpec> parameters,
    const StatePieces& written, StoredRecords records, const Options& options) {
  SLUICE_RETURN_IF_ERROR(check_options(options));
  SLUICE_ASSIGN_OR_RETURN(CheckpointPlan plan,
                          plan_beside(parameters, written, records, options.shards()));
  std::unique_ptr<CheckpointWriter> writer(
      new CheckpointWriter(queue, folder, std::make_shared<const CheckpointPlan>(std::move(plan)),
                           /*in_parts=*/true, options));
  writer->manifest_.records = std::move(records);
  return begin(std::move(writer));
}

Result<std::unique_ptr<CheckpointWriter>> CheckpointWriter::begin(
    std::unique_ptr<CheckpointWriter> writer) {
  SLUICE_RETURN_IF_ERROR(writer->prepare());
  return writer;
}

CheckpointWriter::CheckpointWriter(aio::IoQueue& queue, std::string folder,
                                   std::shared_ptr<const CheckpointPlan> plan, bool in_parts,
                                   const Options& options)
    : queue_(queue),
      folder_(std::move(folder)),
      plan_(std::move(plan)),
      in_parts_(in_parts),
      options_(options),
      target_(folder_ + std::string(kReplacementSuffix)),
      total_bytes_(plan_->bytes()),
      has_part_(static_cast<std::size_t>(plan_->writers())) {}

CheckpointWriter::~CheckpointWriter() {
  part_.reset();
  if (!made_ || committed_) return;
  const Status removed = remove_checkpoint(queue_, target_);
  if (!removed.ok())
    log::warning("the files of a failed checkpoint could not be removed: " +
                 removed.error().message());
}

Status CheckpointWriter::prepare() {
  manifest_.parameters = plan_->parameters.size();
  for (const TensorInfo& parameter : plan_->parameters) manifest_.elements += parameter.elements;
  manifest_.chunk_bytes = options_.chunk_bytes;
  manifest_.moments = options_.moments;
  for (const offload::StateField& field : offload::kStateFields) {
    for (std::size_t shard = 0; shard < plan_->shards.size(); ++shard)
      manifest_.files.push_back({.name = shard_name(field, shard, plan_->shards.size()),
                                 .bytes = plan_->shards[shard].file(field).bytes});
  }
  if (in_parts_) describe_parts();
  SLUICE_RETURN_IF_ERROR(take_folder());
  SLUICE_RETURN_IF_ERROR(check_space());
  SLUICE_ASSIGN_OR_RETURN(part_, PartWriter::begin(queue_, folder_, plan_, 0, options_));
  // Other programs cannot join pieces of parameters.
  return in_parts_ ? Status() : write_index();
}

void CheckpointWriter::describe_parts() {
  manifest_.world = plan_->writers();
  manifest_.tensors.assign(plan_->parameters.begin(), plan_->parameters.end());
  for (const ShardPlan& shard : plan_->shards) manifest_.pieces.push_back(shard.pieces);
}

// Unreadable content is set aside, not lost: a run that has come this far must be able to save.
Status CheckpointWriter::take_folder() {
  aio::FileSystem& files = queue_.backend().files();
  const auto begun = look_at_checkpoint(queue_, target_);
  const bool is_other = begun && begun->known() && !begun->leftover && !begun->complete();
  if (is_other || (begun && is_linked(files, target_)))
    SLUICE_RETURN_IF_ERROR(set_folder_aside(files, target_));
  SLUICE_RETURN_IF_ERROR(settle_replacement(queue_, folder_));
  const auto there = look_at_checkpoint(queue_, folder_);
  if (there && !there->leftover) {
    if (!options_.replace)
      return Error(ErrorCode::kAlreadyExists, "there is a checkpoint in " + folder_ + " already");
    if (there->complete()) SLUICE_RETURN_IF_ERROR(check_replaceable(files, folder_));
  }
  made_ = true;
  return make_durable_folder(files, target_);
}

// Each writer reserves its space before it writes anything, so that a full disk is detected now.
// The index and the manifest are small, and use the rest.
Status CheckpointWriter::check_space() const {
  SLUICE_ASSIGN_OR_RETURN(const std::uint64_t free_bytes,
                          queue_.backend().files().free_bytes(target_));
  const std::uint64_t needed_bytes =
      total_bytes_ + kSmallFilesBytes + total_bytes_ / options_.chunk_bytes * kManifestBytesOfChunk;
  if (needed_bytes <= free_bytes) return {};
  return Error(ErrorCode::kNoSpace, "no room for a checkpoint of " + format_bytes(needed_bytes) +
                                        " in " + target_ + ": " + format_bytes(free_bytes) +
                                        " are free. Free some space there, keep fewer "
                                        "checkpoints, or choose another path");
}

Status CheckpointWriter::fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
  return status_;
}

Status CheckpointWriter::append(std::string_view parameter, const offload::ConstStateSlice& state) {
  if (!status_.ok()) return status_;
  if (committed_) return invalid("checkpoint " + folder_ + " is finished");
  return fail(part_->append(parameter, state));
}

Status CheckpointWriter::finish_part() {
  if (!status_.ok() || has_part_.front()) return status_;
  SLUICE_RETURN_IF_ERROR(part_->finish());
  return fail(add_part(0, part_->checksums()));
}

Status CheckpointWriter::add_part(int writer, std::span<const std::uint64_t> checksums) {
  const auto number = static_cast<std::size_t>(writer);
  if (writer < 0 || writer >= plan_->writers() || has_part_[number] ||
      checksums.size() != checksums_of(*plan_, writer, options_.chunk_bytes))
    return invalid("checkpoint " + folder_ + ": " + std::to_string(checksums.size()) +
                   " checksums are not those that writer " + std::to_string(writer) +
                   " still owes");
  has_part_[number] = true;
  for (std::size_t field = 0; field < offload::kStateFields.size(); ++field) {
    for (std::size_t shard = plan_->first_shards[number]; shard < plan_->first_shards[number + 1];
         ++shard) {
      StoredFile& file = manifest_.files[plan_->file_number(field, shard)];
      const auto count = (file.bytes - 1) / options_.chunk_bytes + 1;
      file.chunks.assign(checksums.begin(), checksums.begin() + static_cast<std::ptrdiff_t>(count));
      checksums = checksums.subspan(count);
    }
  }
  return {};
}

Status CheckpointWriter::commit(const CheckpointState& state) {
  if (!status_.ok()) return status_;
  if (committed_) return {};
  SLUICE_RETURN_IF_ERROR(finish_part());
  for (std::size_t writer = 0; writer < has_part_.size(); ++writer) {
    if (!has_part_[writer])
      return invalid("checkpoint " + folder_ + ": writer " + std::to_string(writer) +
                     " has not finished");
  }
  if (plan_->writers() > 1) SLUICE_RETURN_IF_ERROR(fail(check_other_parts()));
  return fail(publish(state));
}

// The other writers run in other processes, possibly on other hosts. Their files must be visible to
// this process under the names that the manifest will list.
Status CheckpointWriter::check_other_parts() const {
  Status there = check_stored_files(queue_, manifest_, target_);
  if (there.ok() || there.error().code() != ErrorCode::kCorrupt) return there;
  return std::move(there).error().with_suffix(
      ", although it was written: all hosts of a run must share the folder for its checkpoints");
}

// Hugging Face's index of the masters, so that other programs find the weights.
Status CheckpointWriter::write_index() {
  WeightMap weights;
  for (std::size_t shard = 0; shard < plan_->shards.size(); ++shard) {
    for (const TensorInfo& tensor : plan_->shards[shard].tensors)
      weights.emplace(tensor.name, manifest_.files[shard].name);
  }
  const std::string text = make_safetensors_index(weights, manifest_.elements * sizeof(float));
  StoredFile index{.name = std::string(kWeightIndexName), .bytes = text.size()};
  const auto bytes = std::as_bytes(std::span(text));
  for (std::uint64_t offset = 0; offset < bytes.size(); offset += options_.chunk_bytes) {
    const auto rest = bytes.subspan(offset);
    index.chunks.push_back(
        checkpoint_hash(rest.first(std::min<std::uint64_t>(rest.size(), options_.chunk_bytes)),
                        {.file = manifest_.files.size(), .offset_bytes = offset}));
  }
  SLUICE_RETURN_IF_ERROR(aio::write_small_file(queue_, path_in(index.name), text));
  total_bytes_ += index.bytes;
  manifest_.files.push_back(std::move(index));
  return {};
}

// Everything that the manifest mentions is durable before it appears. File contents became so when
// their files were finished, and the folder's name when it was created. The file names are synced
// here.
Status CheckpointWriter::publish(const CheckpointState& state) {
  aio::FileSystem& files = queue_.backend().files();
  manifest_.state = state;
  if (manifest_.records)
    SLUICE_RETURN_IF_ERROR(
        check_manifest_room(state, manifest_.tensors, manifest_.records->store.records.size()));
  SLUICE_RETURN_IF_ERROR(files.sync_directory(target_));
  SLUICE_RETURN_IF_ERROR(aio::write_small_file(queue_, path_in(kManifestName), to_text(manifest_)));
  committed_ = true;
  return settle_replacement(queue_, folder_);
}

std::string CheckpointWriter::path_in(std::string_view name) const {
  return target_ + "/" + std::string(name);
}

}  // namespace sluice::engine
