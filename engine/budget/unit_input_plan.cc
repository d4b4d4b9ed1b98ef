#include "engine/budget/unit_input_plan.h"

#include "aio/units.h"

namespace sluice::engine {
namespace {

// The alignment of LibTorch's own tensors: libraries choose kernels by alignment, and different
// kernels give different bits.
constexpr std::uint64_t kAlignmentBytes = 512;

}  // namespace

UnitInputPlan::UnitInputPlan(const ModelLayout& model, const UnitInputOptions& options)
    : ring_(model.blocks(), options.slots),
      unit_input_bytes_(
          static_cast<std::uint64_t>(options.micro_batch * options.tokens * model.hidden()) *
          offload::element_bytes(options.type)),
      place_bytes_(align_up(unit_input_bytes_, kAlignmentBytes)),
      unit_bytes_(place_bytes_ * static_cast<std::uint64_t>(options.micro_batches)) {}

}  // namespace sluice::engine
