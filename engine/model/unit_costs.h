// UnitKind: what the passes of all units of one kind cost: floating-point operations, and memory of
// activations. For plans, preflights and estimates. Without LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace sluice::engine {

// One multiply-add is two operations. Attention counts the half that its causal mask leaves.
struct Flops {
  double forward = 0;
  double backward = 0;
  double recompute = 0;  // what backward adds where activations were not saved
};

// Bytes of the device's memory that are read and written.
struct Traffic {
  double forward = 0;
  double backward = 0;
};

struct PassShape {
  std::int64_t micro_batch = 1;   // sequences
  std::int64_t tokens = 0;        // of each sequence
  std::int64_t number_bytes = 2;  // of an activation: 4, or 2

  std::int64_t rows() const { return micro_batch * tokens; }
};

// Keys, and as many values, of one position.
struct KvShape {
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
};

struct PeakOptions {
  bool cpu = false;
  bool plain_attention = false;  // where attention is not a fused kernel's
  bool fast_products = false;    // of 16-bit numbers, by the CPU (ops/products.h); else fp32 copies
  bool deterministic = false;
};

// What a unit is given, and what it makes of it.
enum class UnitRole : std::uint8_t {
  kEmbedding,  // of token ids: the first unit, and no other
  kBlock,      // of the unit's before output; backward needs that input, and what forward saved or
               // recompute() makes
  kHead        // of the last block's output: the loss, with its gradient at once; the last unit
};

class UnitKind {
 public:
  UnitKind(std::string name, UnitRole role) : name_(std::move(name)), role_(role) {}
  virtual ~UnitKind() = default;
  UnitKind(const UnitKind&) = delete;
  UnitKind& operator=(const UnitKind&) = delete;

  // "block"; each kind of a model has another one.
  const std::string& name() const { return name_; }
  UnitRole role() const { return role_; }

  // Of products, per token, in sequences of `tokens`. Of a head: forward is the loss alone, as in
  // evaluation; training makes forward and backward at once.
  virtual Flops flops(std::int64_t tokens) const = 0;
  // Per token, with activations of so many bytes, where products are not what takes its time.
  virtual Traffic traffic(std::int64_t /*number_bytes*/) const { return {}; }
  // What a block's Saved holds of one micro-batch.
  virtual std::uint64_t saved_bytes(const PassShape& /*pass*/) const { return 0; }
  // What a block keeps of each position of a text that is continued (KvCache).
  virtual KvShape kv_shape() const { return {}; }
  // The most that stands in memory at once on the compute device during a call, with its input, its
  // output or gradient, and what is saved; without parameters and gradients of parameters, and
  // without what libraries keep for themselves (cuBLAS' workspace). An upper bound, close on CUDA;
  // on the CPU 16-bit numbers have fp32 copies beside them.
  virtual std::uint64_t peak_bytes(const PassShape& pass, const PeakOptions& options) const = 0;

 private:
  std::string name_;
  UnitRole role_;
};

}  // namespace sluice::engine
