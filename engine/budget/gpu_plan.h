// What the parts of a run on the GPU take of its memory and of pinned host memory, from sizes
// alone: for plans, also of a GPU that is not in the machine. engine/step/cuda_step.h makes the
// parts, of just these sizes.
//
// Threads: pure functions.
#pragma once

#include <cstdint>

#include "engine/model/model_layout.h"
#include "offload/element_types.h"
#include "offload/unit_residency.h"

namespace sluice::engine {

// Blocks take turns in slots; the embedding and the head have one each. Resident units have a place
// of their own instead.
struct CudaSlotOptions {
  offload::ElementType type = offload::ElementType::kBf16;
  int block_slots = 3;  // computed with, copied into, just used
  offload::UnitResidency residency;
};
inline constexpr UnitRole kSlotRoles[] = {UnitRole::kEmbedding, UnitRole::kBlock, UnitRole::kHead};

int planned_slots(const ModelLayout& model, const CudaSlotOptions& options, UnitRole of);
std::uint64_t planned_slot_bytes(const ModelLayout& model, const CudaSlotOptions& options,
                                 UnitRole of);  // of one
std::uint64_t planned_slot_bytes(const ModelLayout& model,
                                 const CudaSlotOptions& options);  // of all
// A resident unit's place, and all of them.
std::uint64_t place_bytes(const ModelLayout& model, const CudaSlotOptions& options, int unit);
std::uint64_t planned_resident_bytes(const ModelLayout& model, const CudaSlotOptions& options);

// The gradient of a unit with state on the GPU is kept there until its update; that of others
// passes through a stage to the host.
struct CudaSinkOptions {
  offload::GradType type = offload::GradType::kBf16;
  offload::UnitResidency residency;
};
inline constexpr int kGradientStages = 2;  // one is filled while the other is copied out

// fp32. Of a unit that lends parameters: its own, since later units add to them before it does.
// The others take turns.
std::uint64_t own_accumulator_elements(const ModelLayout& model, int unit);  // 0: it has none
std::uint64_t shared_accumulator_elements(const ModelLayout& model);
std::uint64_t stage_bytes(const ModelLayout& model, const CudaSinkOptions& options);  // of one
std::uint64_t kept_gradient_bytes(const ModelLayout& model, const CudaSinkOptions& options,
                                  int unit);
std::uint64_t kept_gradient_bytes(const ModelLayout& model, const CudaSinkOptions& options);
// Pinned: nothing where the GPU updates all of the unit.
std::uint64_t host_gradient_bytes(const ModelLayout& model, const CudaSinkOptions& options,
                                  int unit);
std::uint64_t square_sum_bytes(const ModelLayout& model, int unit);  // likewise pinned
std::uint64_t planned_sink_gpu_bytes(const ModelLayout& model, const CudaSinkOptions& options);
std::uint64_t planned_sink_host_bytes(const ModelLayout& model, const CudaSinkOptions& options);

}  // namespace sluice::engine
