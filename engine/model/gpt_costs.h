// What the passes of a GPT cost, from its shape alone: floating-point operations and activation
// memory. For plans and preflights. Without LibTorch.
#pragma once

#include <cstdint>

#include "engine/model/gpt_shape.h"

namespace sluice::engine {

// One multiply-add is two operations. Attention counts the half that its causal mask leaves.
struct Flops {
  double forward = 0;
  double backward = 0;
  double recompute = 0;  // what backward adds where activations were not saved
};
// Per token, in sequences of `tokens`.
Flops block_flops(const GptShape& shape, std::int64_t tokens);
// forward: of the loss alone. Training makes forward and backward at once.
Flops head_flops(const GptShape& shape, std::int64_t padded_vocab = 0);
Flops model_flops(const GptShape& shape, std::int64_t tokens, std::int64_t padded_vocab = 0);

struct PassShape {
  std::int64_t micro_batch = 1;
  std::int64_t tokens = 0;        // of each sequence
  std::int64_t number_bytes = 2;  // of an activation: 4, or 2
};

// A unit's input or output, kept between forward and backward in any case.
std::uint64_t boundary_bytes(const GptShape& shape, const PassShape& pass);
// What a block's Saved holds of one micro-batch.
std::uint64_t block_saved_bytes(const GptShape& shape, const PassShape& pass);

// The most that stands in memory at once on the compute device during a call, with its input, its
// output or gradient, and what is saved; without parameters and gradients of parameters, and
// without what libraries keep for themselves (cuBLAS' workspace). An upper bound, close on CUDA; on
// the CPU 16-bit numbers have fp32 copies beside them. `plain_attention`: where attention is not a
// fused kernel's (on the CPU: with dropout).
struct PeakOptions {
  bool cpu = false;
  bool plain_attention = false;
  bool deterministic = false;
};
std::uint64_t block_peak_bytes(const GptShape& shape, const PassShape& pass,
                               const PeakOptions& options = {});
std::uint64_t head_peak_bytes(const GptShape& shape, const PassShape& pass,
                              std::int64_t padded_vocab = 0, const PeakOptions& options = {});

// Rows of logits that stand in memory at once: more on CUDA, where each chunk also reads and writes
// the token embedding's whole gradient.
std::int64_t loss_chunk_rows(std::int64_t vocab, bool cpu);

}  // namespace sluice::engine
