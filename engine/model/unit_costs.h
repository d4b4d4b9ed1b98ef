// UnitKind: the cost of passes of all units of one kind: floating-point operations, and memory of
// activations. For plans, preflights and estimates. Without LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace sluice::engine {

// One multiply-add is two operations. Attention counts only the half that its causal mask leaves.
struct Flops {
  double forward = 0;
  double backward = 0;
  double recompute = 0;  // added to backward if activations were not saved
};

// Bytes read and written in the device's memory.
struct Traffic {
  double forward = 0;
  double backward = 0;
};

// What products in fp8 (fp8_recipe.h) do: the part of flops() that they compute, and the bytes that
// are read and written for the casts of activations and of weights.
struct Fp8Work {
  Flops flops;        // per token
  Traffic of_token;   // of activations and gradients
  Traffic of_passes;  // of weights, whatever the number of tokens
};

struct PassShape {
  std::int64_t micro_batch = 1;   // sequences
  std::int64_t tokens = 0;        // per sequence
  std::int64_t number_bytes = 2;  // per activation: 4, or 2

  std::int64_t rows() const { return micro_batch * tokens; }
};

// A block's keys of one position; the values have the same shape.
struct KvShape {
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
};

// What a block keeps of a text whatever its length: the last inputs of a convolution, and one fp32
// state for each head.
struct StateShape {
  std::int64_t inputs = 0;  // tokens
  std::int64_t input_width = 0;
  std::int64_t heads = 0;
  std::int64_t key_dim = 0;
  std::int64_t value_dim = 0;
};

struct PeakOptions {
  bool cpu = false;
  bool plain_attention = false;  // attention without a fused kernel
  bool fast_products = false;    // of 16-bit numbers, on the CPU (ops/products.h); else fp32 copies
  bool deterministic = false;
};

// The inputs and outputs of a unit.
enum class UnitRole : std::uint8_t {
  kEmbedding,  // from token ids; only the first unit.
  kBlock,      // From the previous unit's output; backward needs that input, and what forward saved
               // or recompute() made.
  kHead  // From the last block's output to the loss, with its gradient at once; the last unit.
};

class UnitKind {
 public:
  UnitKind(std::string name, UnitRole role) : name_(std::move(name)), role_(role) {}
  virtual ~UnitKind() = default;
  UnitKind(const UnitKind&) = delete;
  UnitKind& operator=(const UnitKind&) = delete;

  // For example "block"; unique among the kinds of a model.
  const std::string& name() const { return name_; }
  UnitRole role() const { return role_; }

  // Operations of products, per token, in sequences of `tokens`. A head's forward is the loss
  // alone, as in evaluation; training computes forward and backward together.
  virtual Flops flops(std::int64_t tokens) const = 0;
  // Bytes per token of the operations that are not products, with activations of `number_bytes`.
  virtual Traffic traffic(std::int64_t /*number_bytes*/) const { return {}; }
  // All 0: no product is computed in fp8.
  virtual Fp8Work fp8_work(std::int64_t /*number_bytes*/) const { return {}; }
  // The bytes in a block's Saved for one micro-batch.
  virtual std::uint64_t saved_bytes(const PassShape& /*pass*/) const { return 0; }
  // Elements of the unit's parameters that do not compute a given token: those of the experts that
  // are not chosen for it.
  virtual std::uint64_t idle_elements() const { return 0; }
  // How many experts a token's are chosen from; 0: the unit has none.
  virtual std::int64_t experts() const { return 0; }
  // A block's entry in the KvCache for each position.
  virtual KvShape kv_shape() const { return {}; }
  // Its entry for the whole text.
  virtual StateShape state_shape() const { return {}; }
  // The peak memory on the compute device during a call, with its input, its output or gradient,
  // and saved tensors. Parameters, their gradients and libraries' own memory (cuBLAS' workspace) do
  // not count. An upper bound, close on CUDA; on the CPU it includes fp32 copies of 16-bit numbers.
  virtual std::uint64_t peak_bytes(const PassShape& pass, const PeakOptions& options) const = 0;

 private:
  std::string name_;
  UnitRole role_;
};

}  // namespace sluice::engine
