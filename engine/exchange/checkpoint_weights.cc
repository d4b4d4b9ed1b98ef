#include "engine/exchange/checkpoint_weights.h"

#include <utility>

namespace sluice::engine {

Result<std::unique_ptr<CheckpointWeights>> CheckpointWeights::open(aio::IoQueue& queue,
                                                                   const std::string& folder) {
  SLUICE_ASSIGN_OR_RETURN(const bool is_checkpoint, queue.backend().files().exists(
                                                        folder + "/" + std::string(kManifestName)));
  if (!is_checkpoint) return std::unique_ptr<CheckpointWeights>();
  SLUICE_ASSIGN_OR_RETURN(auto reader, CheckpointReader::open(queue, folder, {.moments = false}));
  if (!reader->manifest().in_parts()) return std::unique_ptr<CheckpointWeights>();
  SLUICE_RETURN_IF_ERROR(reader->check_headers());
  return std::unique_ptr<CheckpointWeights>(new CheckpointWeights(folder, std::move(reader)));
}

}  // namespace sluice::engine
