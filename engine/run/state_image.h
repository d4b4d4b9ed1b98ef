// StateImage: a copy in memory of a run's master weights and moments, to be written while the run
// continues.
//
// Memory:  bytes_for(elements of the model's parameters), mapped and touched at create().
// Threads: one at a time; copy() works with all threads of the run's executor.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "aio/page_memory.h"
#include "aio/result.h"
#include "engine/run/training_run.h"

namespace sluice::engine {

class StateImage {
 public:
  static constexpr std::uint64_t bytes_for(std::uint64_t elements) {
    return elements * 3 * sizeof(float);
  }
  // Of the run, whose model must outlive it.
  static Result<std::unique_ptr<StateImage>> create(TrainingRun& run);

  // Replaces what it holds; after an error its content is of no use.
  Status copy(TrainingRun& run);
  // In the order of the model's parameters.
  Status replay(const TrainingRun::TakeState& take) const;

 private:
  // In the flat order of all parameters, without gaps.
  struct Place {
    const ParameterSpec* parameter = nullptr;
    std::uint64_t first = 0;
  };
  StateImage(const ModelLayout& model, std::uint64_t elements, aio::PageMemory memory);
  // Master weights, or one of the moments.
  std::span<float> values(std::size_t field, std::uint64_t first, std::uint64_t count) const;

  const std::uint64_t elements_;
  aio::PageMemory memory_;
  std::vector<Place> places_;
  std::unordered_map<const ParameterSpec*, std::uint64_t> first_of_;
};

}  // namespace sluice::engine
