#include "engine/checkpoint/copy_checkpoint.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "engine/checkpoint/checkpoint_names.h"
#include "engine/checkpoint/checkpoint_reader.h"
#include "engine/checkpoint/checkpoint_writer.h"

namespace sluice::engine {
namespace {

constexpr std::uint64_t kElementsAtOnce = std::uint64_t{1} << 20;

// A step's name on another step's checkpoint would look like damage.
Status check_name(const std::string& to, std::int64_t step) {
  const auto named = parse_folder_name(last_name(to));
  if (!named || (named->step == step && !named->replacement)) return {};
  return Error(ErrorCode::kInvalidArgument,
               to + " is the name of another checkpoint: this one is " + checkpoint_name(step) +
                   ". Choose that name, or " + "one that does not begin with step-");
}

// The writer fills a folder next to `to`, which then takes its name with all that it contains.
Status check_folder_next_to(aio::FileSystem& files, const std::string& to) {
  const std::string begun = to + std::string(kReplacementSuffix);
  const auto listed = files.list(begun);
  if (!listed.ok())
    return listed.error().code() == ErrorCode::kNotFound ? Status() : Status(listed.error());
  const auto foreign = std::find_if_not(listed->begin(), listed->end(), is_checkpoint_file);
  if (foreign == listed->end()) return {};
  return Error(ErrorCode::kAlreadyExists, "the copy is first written to " + begun +
                                              ", which contains " + *foreign +
                                              ": move that folder away, or name another one");
}

// The writer replaces an empty folder at its end, which a mount point does not allow.
Status make_way(aio::FileSystem& files, const std::string& to) {
  if (const std::string name = last_name(to); name == "." || name == ".." || name.empty())
    return Error(ErrorCode::kInvalidArgument,
                 to + " is a folder that the copy cannot replace: name a new folder in it");
  const auto listed = files.list(to);
  if (!listed.ok() && listed.error().code() != ErrorCode::kNotFound) return listed.error();
  if (listed.ok() && !listed->empty())
    return Error(ErrorCode::kAlreadyExists, to + " is not empty: name a new or an empty folder");
  SLUICE_RETURN_IF_ERROR(check_folder_next_to(files, to));
  if (!listed.ok()) return {};
  Status removed = files.remove(to);
  if (removed.ok()) return removed;
  return std::move(removed).error().with_suffix("; name a new folder in it");
}

Status copy_state(CheckpointReader& from, CheckpointWriter& to, const CopyCheckpoint& copy) {
  std::vector<float> memory(offload::kStateFields.size() * kElementsAtOnce);
  const std::uint64_t total = from.manifest().elements;
  std::uint64_t done = 0;
  for (const TensorInfo& parameter : from.parameters()) {
    for (std::uint64_t first = 0; first < parameter.elements; first += kElementsAtOnce) {
      const std::uint64_t count = std::min(kElementsAtOnce, parameter.elements - first);
      const offload::StateSlice slice =
          offload::state_slice_in(memory, first, count, kElementsAtOnce);
      SLUICE_RETURN_IF_ERROR(from.read(parameter.name, slice));
      SLUICE_RETURN_IF_ERROR(to.append(parameter.name, slice));
      done += count;
      if (copy.progress) copy.progress(done, total);
    }
  }
  return {};
}

Result<CopiedCheckpoint> copy_once(aio::IoQueue& queue, const CopyCheckpoint& copy) {
  SLUICE_ASSIGN_OR_RETURN(const auto from, CheckpointReader::open(queue, copy.from, {}));
  const CheckpointManifest& manifest = from->manifest();
  const std::int64_t step = manifest.state.position.global_step;
  SLUICE_RETURN_IF_ERROR(check_name(copy.to, step));
  SLUICE_RETURN_IF_ERROR(make_way(queue.backend().files(), copy.to));
  const std::vector<TensorSpec> parameters(from->parameters().begin(), from->parameters().end());
  SLUICE_ASSIGN_OR_RETURN(const auto to, CheckpointWriter::begin(queue, copy.to, parameters,
                                                                 {.moments = manifest.moments}));
  SLUICE_RETURN_IF_ERROR(copy_state(*from, *to, copy));
  SLUICE_RETURN_IF_ERROR(to->commit(manifest.state));
  return CopiedCheckpoint{.step = step, .bytes = to->total_bytes()};
}

Result<bool> has_manifest(aio::IoQueue& queue, const std::string& folder) {
  return queue.backend().files().exists(folder + "/" + std::string(kManifestName));
}

}  // namespace

// A failed read is no damage if the run has renamed or removed the checkpoint meanwhile.
Result<CopiedCheckpoint> copy_checkpoint(aio::IoQueue& queue, const CopyCheckpoint& copy) {
  SLUICE_ASSIGN_OR_RETURN(const bool was_there, has_manifest(queue, copy.from));
  auto copied = copy_once(queue, copy);
  if (copied.ok() || !was_there) return copied;
  SLUICE_ASSIGN_OR_RETURN(const bool is_there, has_manifest(queue, copy.from));
  if (is_there) return copied;
  if (copy.from.ends_with(kReplacementSuffix)) {  // the save is complete
    CopyCheckpoint renamed = copy;
    renamed.from.resize(copy.from.size() - kReplacementSuffix.size());
    return copy_checkpoint(queue, renamed);
  }
  return Error(ErrorCode::kNotFound,
               copy.from +
                   " was removed while it was copied, because its run saved a newer "
                   "checkpoint: copy that one");
}

}  // namespace sluice::engine
