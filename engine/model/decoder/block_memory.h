// The peak memory of a decoder block's passes, from its spec. Without LibTorch.
#pragma once

#include <cstdint>

#include "engine/model/decoder/block_spec.h"
#include "engine/model/lora_recipe.h"
#include "engine/model/unit_costs.h"

namespace sluice::engine {

// Whether our own kernels compute rows of `columns` numbers (ops/fused_kernels.h). ATen's operators
// make fp32 copies.
bool fuses_rows(const PassShape& pass, const PeakOptions& options, std::int64_t columns);

// The fp32 copies of a norm's backward by ATen's operators.
std::uint64_t norm_copies_bytes(NormKind kind, std::int64_t hidden, const PassShape& pass,
                                const PeakOptions& options);

// UnitKind::peak_bytes().
std::uint64_t block_peak_bytes(const BlockSpec& block, const LoraRecipe& lora,
                               const PassShape& pass, const PeakOptions& options = {});

}  // namespace sluice::engine
