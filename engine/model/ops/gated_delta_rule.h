// The gated delta rule (Yang et al., "Gated Delta Networks", 2024): attention with a state of
// constant size instead of keys and values. Each value head's state S [key_dim, value_dim] becomes,
// with a token's key k, value v, log decay g and rate beta:
//
//   S <- exp(g) S;   S <- S + k (beta (v - S' k))';   output: S' q
//
// Keys and queries are divided by their lengths, and queries by sqrt(key_dim). Each document begins
// with a state of zeros. Computed in chunks of 64 tokens (the WY form of "DeltaNet", 2024), in fp32
// (float64 for float64), as in transformers. For 16-bit tensors on CUDA, products round their
// factors to TF32, which is finer than the 16 bits they come from. Sums, states, decays and the
// inverse of a chunk's triangle stay fp32.
//
// Backward computes chunks and states again. A chunk's state has key_dim / 64 times as many numbers
// as its output, in fp32: keeping it would take more memory than all else that is saved.
//
// Memory:  fp32 copies of a bounded number of heads at a time. Threads: any; on CUDA one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/model/delta_heads.h"
#include "engine/model/documents.h"

namespace sluice::engine {

struct DeltaInputs {
  const at::Tensor& qkv;    // [B, T, DeltaHeads::qkv_width()]
  const at::Tensor& decay;  // log: fp32 [B, T, value_heads], at most 0
  const at::Tensor& rate;   // fp32 [B, T, value_heads]
};

// Returns [B, T, value_width()] in the dtype of qkv. `documents` null: each sequence is one
// document.
at::Tensor gated_delta_rule(const DeltaInputs& inputs, const DeltaHeads& heads,
                            const Documents* documents);

// Continues a text: `state` [B, value_heads, key_dim, value_dim], fp32, is that before the tokens,
// and becomes that after them.
at::Tensor gated_delta_rule_after(const at::Tensor& state, const DeltaInputs& inputs,
                                  const DeltaHeads& heads);

struct DeltaGradients {
  at::Tensor qkv;    // in the dtype of qkv
  at::Tensor decay;  // fp32
  at::Tensor rate;   // fp32
};
DeltaGradients gated_delta_rule_backward(const at::Tensor& grad_output, const DeltaInputs& inputs,
                                         const DeltaHeads& heads, const Documents* documents);

// The parameters of decay [value_heads], or their gradients (fp32, added to).
struct DecayParameters {
  const at::Tensor& log_rate;  // A_log
  const at::Tensor& bias;      // dt_bias
};
// -exp(log_rate) * softplus(a + bias), in fp32. `a`: [B, T, value_heads].
at::Tensor delta_decay(const at::Tensor& a, const DecayParameters& parameters);
// Returns the gradient of `a`, in fp32. `decay`: delta_decay(); gradients may be undefined.
at::Tensor delta_decay_backward(const at::Tensor& gradient, const at::Tensor& decay,
                                const at::Tensor& a, const DecayParameters& parameters,
                                const DecayParameters& gradients);

}  // namespace sluice::engine
