// BlockSpec: a decoder block as data: norms, attention and feed-forward or experts, and the names
// of its parameters in files. DecoderSpec: such blocks with an embedding and a head. A family fills
// them in from a ModelShape; layout, adapters, costs and passes derive from them. Without LibTorch.
//
// Memory:  names are literals. Threads: plain values.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>

#include "engine/model/activation.h"
#include "engine/model/decoder/rope_frequencies.h"
#include "engine/model/delta_heads.h"
#include "engine/model/fp8_recipe.h"
#include "engine/model/row_pieces.h"

namespace sluice::engine {

enum class NormKind : std::uint8_t {
  kLayer,  // mean and deviation; a gain and a bias
  // Root of the mean square, and a gain, which multiplies numbers of 16 bits after their rounding.
  kRms,
  kRmsWide,    // It multiplies before the rounding.
  kRmsFromOne  // It is added to 1, and multiplies before the rounding.
};

struct AttentionSpec {
  std::int64_t heads = 0;  // of queries
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  bool qkv_bias = false;
  bool output_bias = false;
  bool head_norms = false;  // of queries and keys
  // The queries' product has a gate for each head's output, after the head's queries.
  bool output_gate = false;
  bool sinks = false;       // one more score for each head (ops/attention.h)
  std::int64_t window = 0;  // keys visible to a query; 0: all up to it

  Rope rope;              // head norms need one
  double dropout = 0;     // of the probabilities
  bool in_parts = false;  // some heads at a time, if rows are cut without dropout

  bool scales = true;            // divides scores by sqrt(head_dim)
  bool scales_by_layer = false;  // and by layer + 1
  double query_scalar = 0;       // instead, divides them by its root; 0: none
  // A score becomes soft_cap * tanh(score / soft_cap), before masks; 0: none. No fused kernel.
  double soft_cap = 0;

  // The factor of the scores in block `layer`; nothing: 1 / sqrt(head_dim), as elsewhere.
  std::optional<double> scale(std::int64_t layer) const {
    if (query_scalar > 0) return 1 / std::sqrt(query_scalar);
    if (scales && !scales_by_layer) return std::nullopt;
    double factor = scales ? 1 / std::sqrt(static_cast<double>(head_dim)) : 1;
    if (scales_by_layer) factor /= static_cast<double>(layer + 1);
    return factor;
  }
  std::int64_t query_width() const { return heads * head_dim; }
  std::int64_t key_width() const { return kv_heads * head_dim; }
  std::int64_t qkv_width() const { return query_width() + 2 * key_width(); }
  std::int64_t gate_width() const { return output_gate ? query_width() : 0; }
  std::int64_t in_width() const { return qkv_width() + gate_width(); }  // of its first products
};

// A gated delta rule instead of attention: products, a causal convolution of queries, keys and
// values, the rule (ops/gated_delta_rule.h), and a gated RMSNorm of each head's output.
struct DeltaSpec {
  DeltaHeads heads;
  std::int64_t taps = 0;  // tokens that the convolution sees

  bool exists() const { return taps > 0; }
  // Queries, keys and values; the gate; the rates; the decays.
  std::int64_t in_width() const {
    return heads.qkv_width() + heads.value_width() + 2 * heads.value_heads;
  }
};

struct MlpSpec {
  std::int64_t width = 0;
  bool gated = false;  // a second product of the input is multiplied by the activation
  bool bias = false;
  Activation activation = Activation::kSilu;  // of the gate, if there is one

  std::int64_t in_width() const { return gated ? 2 * width : width; }
};

// A feed-forward of many small ones, the experts, of which a router chooses some for each token.
// Its matrices are stored as [out, in], and gated.
struct ExpertsSpec {
  std::int64_t count = 0;      // 0: a dense feed-forward
  std::int64_t per_token = 0;  // chosen for each
  std::int64_t width = 0;
  bool renormalises = false;  // The weights of the chosen are divided by their sum.
  bool fp32_weights = false;  // They stay fp32; otherwise they get the activations' dtype.
  bool bias = false;          // of router and products
  bool in_turn = false;       // An expert's gate and up alternate where they are joined.
  ClampedGate gate;           // instead of a SiLU

  // One more expert, BlockSpec::mlp, computes every token. Its weight is the sigmoid of a
  // logit of its own.
  bool shared = false;

  bool exist() const { return count > 0; }
};

// The names of a gated delta rule. The decay's end without ".weight".
struct DeltaNames {
  std::array<std::string_view, 4> in;  // queries, keys and values; the gate; rates; decays
  std::string_view convolution;
  std::string_view decay_bias;
  std::string_view decay_rate;
  std::string_view norm;
  std::string_view out;
};

// The names of the shared expert's products, and of that with its logit.
struct SharedNames {
  std::array<std::string_view, 2> in;  // the gate, and what it multiplies
  std::string_view out;
  std::string_view logit;
};

// Names without the block's own, and without ".weight" and ".bias".
struct BlockNames {
  std::string_view blocks;              // "layers", for the blocks "layers.0", "layers.1", ...
  std::array<std::string_view, 3> qkv;  // the first alone: one packed matrix
  std::string_view projection;          // attention's output
  std::array<std::string_view, 2>
      mlp_in;  // a gate is the first; the first alone: packed, or no gate
  std::string_view mlp_out;
  // With experts mlp_in and mlp_out are names within an expert: "EXPERTS.0.MLP_OUT", ...
  std::string_view router;
  std::string_view experts;
  // All experts': [experts, 2 width], an expert's gate and up in turn, and [experts, hidden].
  std::array<std::string_view, 2> expert_biases;
  // The module that has all experts in transformers, as PEFT names their adapters.
  std::string_view expert_adapters = {};
  SharedNames shared = {};
  std::string_view sinks;
  std::string_view norm1;
  std::string_view norm2;
  std::array<std::string_view, 2> head_norms;  // of queries, of keys
  DeltaNames delta = {};
  std::array<std::string_view, 2> branch_norms = {};  // of what each branch adds; or none

  bool has_packed_qkv() const { return qkv[1].empty(); }
};

struct BlockSpec {
  std::int64_t hidden = 0;
  NormKind norm = NormKind::kLayer;  // of all norms but those of heads
  AttentionSpec attention;           // unused with a delta rule
  DeltaSpec delta;                   // instead of `attention`
  MlpSpec mlp;                       // with experts: the shared one, gated; or unused
  ExpertsSpec experts;               // instead of `mlp`, or with it
  BlockNames names;
  // Matrices are stored as [in, out]; otherwise as [out, in], as in torch's Linear.
  bool stores_in_first = false;
  // Flat order of the vectors: each norm, then its branch's biases. Otherwise all norms come first.
  bool vectors_by_branch = false;
  // Initial deviation of the products that are added to the residual stream.
  float branch_std = 0;
  Fp8Recipe fp8;                         // of the products with matrices
  std::int64_t piece_rows = kPieceRows;  // of the feed-forward; smaller only in tests
  double epsilon = 0;                    // of all norms
  double residual_dropout = 0;           // of what a branch adds to the residual stream

  // Whether a branch's output has a norm before it is added to the residual stream.
  bool norms_branches() const { return !names.branch_norms[0].empty(); }
  bool has_dense() const { return !experts.exist() || experts.shared; }
  // Numbers of a token after the feed-forward's activation, and before it; of all its experts.
  std::int64_t mlp_width() const {
    return (has_dense() ? mlp.width : 0) + experts.per_token * experts.width;
  }
  // Logits of a token that give experts their weights.
  std::int64_t logits() const { return experts.count + (experts.shared ? 1 : 0); }
  // Columns of the first branch's first products, and numbers of a token before its last one.
  std::int64_t mixer_in_width() const {
    return delta.exists() ? delta.in_width() : attention.in_width();
  }
  std::int64_t mixer_width() const {
    return delta.exists() ? delta.heads.value_width() : attention.query_width();
  }
  std::int64_t mlp_in_width() const { return experts.exist() ? 2 * mlp_width() : mlp.in_width(); }
};

// The blocks that have a window: from block `first` on, `windowed` of them alternate with `full`
// blocks without one. windowed 0: all blocks from `first` on.
struct LayerWindow {
  std::int64_t tokens = 0;  // 0: no block has one
  std::int64_t first = 0;
  std::int64_t windowed = 0;
  std::int64_t full = 0;

  bool has(std::int64_t layer) const {
    if (tokens == 0 || layer < first) return false;
    return windowed == 0 || (layer - first) % (windowed + full) < windowed;
  }
};

struct DecoderSpec {
  BlockSpec block;  // without a window, and with attention and rotary positions
  std::int64_t layers = 0;
  std::int64_t vocab = 0;
  std::int64_t positions = 0;           // learned ones; 0: none
  bool tied = false;                    // the output projection is the token embedding
  std::string_view token_embedding;     // "wte"
  std::string_view position_embedding;  // empty without learned positions
  std::string_view final_norm;
  double embedding_dropout = 0;
  double embedding_scale = 1;  // multiplies rows of the token embedding, rounded to their dtype
  double logit_cap = 0;        // soft cap of the logits, as of scores; 0: none
  LayerWindow window;
  Rope window_rope;                     // of the blocks that have it; if it exists
  std::int64_t attention_interval = 1;  // so many blocks end with one that attends
  DeltaSpec delta;                      // of the others

  // So many blocks end with one without rotary positions; 0: all that attend have them.
  std::int64_t unrotated_interval = 0;

  bool rotates(std::int64_t layer) const {
    return unrotated_interval == 0 || (layer + 1) % unrotated_interval != 0;
  }
  bool attends(std::int64_t layer) const { return (layer + 1) % attention_interval == 0; }
  BlockSpec block_at(std::int64_t layer) const {
    BlockSpec spec = block;
    if (window.has(layer)) {
      spec.attention.window = window.tokens;
      if (window_rope.exists()) spec.attention.rope = window_rope;
    }
    if (!rotates(layer)) spec.attention.rope = {};
    if (!attends(layer)) spec.delta = delta;
    return spec;
  }
};

// The initial deviation of matrices.
inline constexpr float kInitialStd = 0.02F;

}  // namespace sluice::engine
