// The costs of a GPT-2's passes that its spec does not give (block_costs.h), from its shape alone.
// Without LibTorch.
#pragma once

#include <cstdint>

#include "engine/model/model_shape.h"
#include "engine/model/row_pieces.h"
#include "engine/model/unit_costs.h"

namespace sluice::engine {

// `piece_rows`: smaller only in tests.

// Traffic of the kernels between a block's products: norms, residuals with dropout, the activation,
// sums for biases.
Traffic block_traffic(const ModelShape& shape, std::int64_t number_bytes);
// `forward` is the loss alone; training computes forward and backward together.
Flops head_flops(const ModelShape& shape, std::int64_t padded_vocab = 0);

// A unit's input or output, which is always kept between forward and backward.
std::uint64_t unit_input_bytes(const ModelShape& shape, const PassShape& pass);

// UnitKind::peak_bytes(). `plain_attention`: on the CPU with dropout.
std::uint64_t block_peak_bytes(const ModelShape& shape, const PassShape& pass,
                               const PeakOptions& options = {},
                               std::int64_t piece_rows = kPieceRows);
std::uint64_t head_peak_bytes(const ModelShape& shape, const PassShape& pass,
                              std::int64_t padded_vocab = 0, const PeakOptions& options = {});

}  // namespace sluice::engine
