// StateImage: a copy in memory of a run's master weights and moments, to be written while the run
// continues. Moments are kept as its checkpoints store them.
//
// Memory:  bytes_for(elements of the model's parameters), mapped and touched at create(); a tile's
//          state as fp32 during replay().
// Threads: one at a time; copy() works with all threads of the run's executor.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "aio/page_memory.h"
#include "aio/result.h"
#include "engine/checkpoint/checkpoint_manifest.h"
#include "engine/run/saved_run.h"
#include "engine/weights/dtype.h"

namespace sluice::engine {

class StateImage {
 public:
  // `moments`: stored_moments().
  static std::uint64_t bytes_for(std::uint64_t elements, DType moments) {
    std::uint64_t bytes = 0;
    for (const offload::StateField& field : offload::kStateFields)
      bytes += elements * element_bytes(stored_dtype(field, moments));
    return bytes;
  }
  // Of the run, whose model must outlive it.
  static Result<std::unique_ptr<StateImage>> create(SavedRun& run);

  // Replaces what it holds; after an error its content is of no use.
  Status copy(SavedRun& run);
  // In the order of the model's parameters.
  Status replay(const TakeState& take) const;

 private:
  // In the flat order of all parameters, without gaps.
  struct Place {
    const ParameterSpec* parameter = nullptr;
    std::uint64_t first = 0;
  };
  StateImage(const ModelLayout& model, std::uint64_t elements, DType moments,
             aio::PageMemory memory);
  DType dtype_of(std::size_t field) const {
    return stored_dtype(offload::kStateFields[field], moments_);
  }
  std::span<std::byte> bytes(std::size_t field, std::uint64_t first, std::uint64_t count) const;

  const std::uint64_t elements_;
  const DType moments_;
  aio::PageMemory memory_;
  std::vector<Place> places_;
  std::unordered_map<const ParameterSpec*, std::uint64_t> first_of_;
};

}  // namespace sluice::engine
