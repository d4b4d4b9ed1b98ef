// StateImage: a copy in memory of a run's master weights and moments, to be written while the run
// goes on.
//
// Memory:  bytes_for(elements), mapped at create() and touched by the first copy.
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "aio/page_memory.h"
#include "aio/result.h"
#include "engine/train/training_run.h"

namespace sluice::engine {

class StateImage {
 public:
  static constexpr std::uint64_t bytes_for(std::uint64_t elements) {
    return elements * 3 * sizeof(float);
  }
  static Result<std::unique_ptr<StateImage>> create(std::uint64_t elements);

  // Replaces what it holds. The parameters that the ranges name must outlive the image.
  Status copy(TrainingRun& run);
  // In the order of the copy.
  Status replay(const TrainingRun::TakeState& take) const;

 private:
  struct Range {
    const ParameterSpec* parameter = nullptr;
    std::uint64_t first = 0;
    std::uint64_t elements = 0;
  };
  StateImage(aio::PageMemory memory, std::uint64_t elements)
      : memory_(std::move(memory)), capacity_(elements) {}
  std::span<float> values(std::uint64_t first, std::uint64_t count) const;

  aio::PageMemory memory_;
  const std::uint64_t capacity_;
  std::vector<Range> ranges_;
};

}  // namespace sluice::engine
