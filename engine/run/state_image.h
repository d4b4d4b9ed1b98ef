// StateImage: a copy in memory of a rank's master weights and moments, written while the run
// continues. Moments have the dtype in which the run's checkpoints store them.
//
// Memory:  bytes_for(elements of the rank's parameters), mapped and touched at create(); during
//          replay() also the state of one tile as fp32.
// Threads: one at a time; copy() uses all threads of the run's executor.
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
  static std::uint64_t bytes_for(const ModelLayout& model, const offload::RankPart& ranks,
                                 DType moments);
  // For the rank of this run, whose model must outlive the image.
  static Result<std::unique_ptr<StateImage>> create(SavedRun& run);

  // Replaces the content. After an error the content is invalid.
  Status copy(SavedRun& run);
  // Visits the state in the order of the model's parameters.
  Status replay(const TakeState& take) const;

 private:
  // A rank's elements of a parameter, which are contiguous.
  struct Piece {
    const ParameterSpec* parameter = nullptr;
    std::uint64_t first_element = 0;  // in the parameter
    std::uint64_t elements = 0;
    std::uint64_t before = 0;  // elements of earlier pieces
  };
  static std::vector<Piece> pieces_of(const ModelLayout& model, const offload::RankPart& ranks);
  static std::uint64_t elements_of(const std::vector<Piece>& pieces) {
    return pieces.empty() ? 0 : pieces.back().before + pieces.back().elements;
  }
  StateImage(std::vector<Piece> pieces, DType moments, aio::PageMemory memory);
  DType dtype_of(std::size_t field) const {
    return stored_dtype(offload::kStateFields[field], moments_);
  }
  std::span<std::byte> bytes(std::size_t field, std::uint64_t first, std::uint64_t count) const;

  const std::vector<Piece> pieces_;
  const std::uint64_t elements_;
  const DType moments_;
  aio::PageMemory memory_;
  std::unordered_map<const ParameterSpec*, const Piece*> piece_of_;
};

}  // namespace sluice::engine
