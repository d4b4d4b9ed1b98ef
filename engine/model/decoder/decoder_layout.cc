#include "engine/model/decoder/decoder_layout.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "engine/model/decoder/decoder_kinds.h"

namespace sluice::engine {
namespace {

constexpr float kGain = 1;
constexpr float kBias = 0;
constexpr float kDecayBias = 1;
constexpr float kMostDecayRate = 16;

ParameterSpec matrix(std::string name, std::int64_t rows, std::int64_t columns, float std) {
  return {.name = std::move(name), .shape = {rows, columns}, .group = kDecayed, .initial_std = std};
}

ParameterSpec of_vocabulary(std::string name, std::int64_t rows, std::int64_t columns) {
  ParameterSpec made = matrix(std::move(name), rows, columns, kInitialStd);
  made.is_of_vocabulary = true;
  return made;
}

ParameterSpec vector(std::string name, std::int64_t elements, float value) {
  return {.name = std::move(name),
          .shape = {elements},
          .group = kUndecayed,
          .initial_std = 0,
          .initial_value = value};
}

// Initialised as in PEFT: A like torch's Linear, B zero, so that training starts from the unchanged
// model.
ParameterSpec adapter_matrix(std::string name, std::int64_t rows, std::int64_t columns,
                             bool is_first) {
  ParameterSpec spec = matrix(std::move(name), rows, columns, 0);
  spec.gradient_is_product = true;
  if (is_first) spec.initial_bound = 1 / std::sqrt(static_cast<float>(columns));
  return spec;
}

// One of the products with the same input.
struct Part {
  std::string_view name;
  std::int64_t out = 0;
};

// Products with one input.
struct Products {
  std::vector<Part> parts;
  std::int64_t in = 0;
  bool has_bias = false;
  float std = kInitialStd;
  BlockProducts BlockParameters::*place;
  bool keeps_precision = false;
};

std::vector<Products> delta_products(const BlockSpec& block) {
  const DeltaHeads& heads = block.delta.heads;
  const DeltaNames& names = block.names.delta;
  return {{.parts = {{names.in[0], heads.qkv_width()},
                     {names.in[1], heads.value_width()},
                     {names.in[2], heads.value_heads},
                     {names.in[3], heads.value_heads}},
           .in = block.hidden,
           .place = &BlockParameters::qkv},
          {.parts = {{names.out, block.hidden}},
           .in = heads.value_width(),
           .std = block.branch_std,
           .place = &BlockParameters::projection}};
}

// The first branch's.
std::vector<Products> mixer_products(const BlockSpec& block) {
  if (block.delta.exists()) return delta_products(block);
  const AttentionSpec& attention = block.attention;
  const BlockNames& names = block.names;
  std::vector<Part> qkv = {{names.qkv[0], attention.in_width()}};
  if (!names.has_packed_qkv())
    qkv = {{names.qkv[0], attention.query_width() + attention.gate_width()},
           {names.qkv[1], attention.key_width()},
           {names.qkv[2], attention.key_width()}};
  return {{.parts = std::move(qkv),
           .in = block.hidden,
           .has_bias = attention.qkv_bias,
           .place = &BlockParameters::qkv},
          {.parts = {{names.projection, block.hidden}},
           .in = attention.query_width(),
           .has_bias = attention.output_bias,
           .std = block.branch_std,
           .place = &BlockParameters::projection}};
}

// In flat order, without those of the experts that the router chooses.
std::vector<Products> products_of(const BlockSpec& block) {
  std::vector<Products> all = mixer_products(block);
  if (!block.has_dense()) return all;
  const SharedNames& shared = block.names.shared;
  const bool is_shared = block.experts.shared;
  const auto& in = is_shared ? shared.in : block.names.mlp_in;
  const MlpSpec& mlp = block.mlp;
  const bool is_one = in[1].empty();
  std::vector<Part> mlp_in = {{in[0], is_one ? mlp.in_width() : mlp.width}};
  if (!is_one) mlp_in.push_back({in[1], mlp.width});
  all.push_back({.parts = std::move(mlp_in),
                 .in = block.hidden,
                 .has_bias = mlp.bias,
                 .place = &BlockParameters::mlp_in});
  all.push_back({.parts = {{is_shared ? shared.out : block.names.mlp_out, block.hidden}},
                 .in = mlp.width,
                 .has_bias = mlp.bias,
                 .std = block.branch_std,
                 .place = &BlockParameters::mlp_out});
  if (is_shared)
    all.push_back({.parts = {{shared.logit, 1}},
                   .in = block.hidden,
                   .place = &BlockParameters::shared_logit,
                   .keeps_precision = true});
  return all;
}

// A layout in the making, whose names begin with `prefix`.
class Parameters {
 public:
  Parameters(UnitLayout layout, std::string prefix)
      : layout_(std::move(layout)), prefix_(std::move(prefix)) {}

  void matrices(BlockProducts& place, const Products& products, bool stores_in_first) {
    place.weight = next();
    place.parts = static_cast<int>(products.parts.size());
    for (const Part& part : products.parts) {
      const auto [rows, columns] =
          stores_in_first ? std::pair{products.in, part.out} : std::pair{part.out, products.in};
      add_product(part.name, rows, columns, products.std);
      layout_.parameters.back().keeps_precision = products.keeps_precision;
    }
  }
  void experts(BlockParameters& places, const BlockSpec& block) {
    const ExpertsSpec& experts = block.experts;
    const BlockNames& names = block.names;
    const auto name = [&names](std::int64_t expert, std::string_view of) {
      return std::string(names.experts) + "." + std::to_string(expert) + "." + std::string(of);
    };
    places.expert_in = next();
    for (std::int64_t e = 0; e < experts.count; ++e)
      for (const std::string_view of : names.mlp_in)
        add_product(name(e, of), experts.width, block.hidden, kInitialStd);
    places.expert_out = next();
    for (std::int64_t e = 0; e < experts.count; ++e)
      add_product(name(e, names.mlp_out), block.hidden, experts.width, block.branch_std);
    places.router = next();
    add_product(names.router, experts.count, block.hidden, kInitialStd);
    layout_.parameters.back().keeps_precision = true;
  }
  void convolution(int& place, const BlockSpec& block) {
    place = next();
    const DeltaSpec& delta = block.delta;
    layout_.add({.name = full(block.names.delta.convolution, ".weight"),
                 .shape = {delta.heads.qkv_width(), 1, delta.taps},
                 .group = kDecayed,
                 .initial_std = kInitialStd,
                 .keeps_precision = true});
  }
  void delta_vectors(BlockParameters& places, const BlockSpec& block) {
    const DeltaHeads& heads = block.delta.heads;
    const DeltaNames& names = block.names.delta;
    places.decay_bias = next();
    layout_.add(vector(full(names.decay_bias, ""), heads.value_heads, kDecayBias));
    ParameterSpec rate = vector(full(names.decay_rate, ""), heads.value_heads, 0);
    rate.initial_log_bound = kMostDecayRate;
    layout_.add(std::move(rate));
    places.gated_norm = norm(names.norm, heads.value_dim, NormKind::kRms).gain;
  }
  void expert_biases(BlockParameters& places, const BlockSpec& block) {
    const ExpertsSpec& experts = block.experts;
    const auto add = [&](int& place, std::string name, std::vector<std::int64_t> shape) {
      place = next();
      ParameterSpec spec = vector(std::move(name), 0, kBias);
      spec.shape = std::move(shape);
      layout_.add(std::move(spec));
    };
    add(places.router_bias, full(block.names.router, ".bias"), {experts.count});
    add(places.expert_in_bias, full(block.names.expert_biases[0], ""),
        {experts.count, 2 * experts.width});
    add(places.expert_out_bias, full(block.names.expert_biases[1], ""),
        {experts.count, block.hidden});
  }
  void sinks(BlockParameters& places, const BlockSpec& block) {
    places.sinks = next();
    layout_.add(vector(full(block.names.sinks, ""), block.attention.heads, kBias));
    layout_.parameters.back().initial_std = kInitialStd;
  }
  void biases(BlockProducts& place, const Products& products) {
    if (!products.has_bias) return;
    place.bias = next();
    for (const Part& part : products.parts)
      layout_.add(vector(full(part.name, ".bias"), part.out, kBias));
  }
  NormPlaces norm(std::string_view name, std::int64_t elements, NormKind kind) {
    NormPlaces place{.gain = next()};
    const float gain = kind == NormKind::kRmsFromOne ? 0 : kGain;
    layout_.add(vector(full(name, ".weight"), elements, gain));
    if (kind != NormKind::kLayer) return place;
    place.bias = next();
    layout_.add(vector(full(name, ".bias"), elements, kBias));
    return place;
  }
  UnitLayout take() { return std::move(layout_); }

 private:
  void add_product(std::string_view name, std::int64_t rows, std::int64_t columns, float std) {
    ParameterSpec spec = matrix(full(name, ".weight"), rows, columns, std);
    spec.gradient_is_product = true;  // only one product is added to it per micro-batch
    layout_.add(std::move(spec));
  }
  int next() const { return static_cast<int>(layout_.parameters.size()); }
  std::string full(std::string_view name, const char* end) const {
    return prefix_ + std::string(name) + end;
  }

  UnitLayout layout_;
  std::string prefix_;
};

struct PlacedBlock {
  UnitLayout layout;
  BlockParameters parameters;
};

std::string block_name(const BlockSpec& block, std::int64_t layer) {
  return std::string(block.names.blocks) + "." + std::to_string(layer);
}

PlacedBlock placed_block(const BlockSpec& block, std::int64_t layer) {
  const std::string name = block_name(block, layer);
  const std::vector<Products> all = products_of(block);
  Parameters made({.name = name}, name + ".");
  BlockParameters places;
  const auto matrices = [&](bool keep_precision) {
    for (const Products& products : all)
      if (products.keeps_precision == keep_precision)
        made.matrices(places.*products.place, products, block.stores_in_first);
  };
  matrices(false);
  if (block.experts.exist()) made.experts(places, block);
  matrices(true);
  if (block.delta.exists()) made.convolution(places.convolution, block);
  const auto biases = [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) made.biases(places.*all[i].place, all[i]);
  };
  constexpr std::size_t kOfAttention = 2;
  places.norm1 = made.norm(block.names.norm1, block.hidden, block.norm);
  if (block.vectors_by_branch) biases(0, kOfAttention);
  places.norm2 = made.norm(block.names.norm2, block.hidden, block.norm);
  if (block.norms_branches())
    for (std::size_t i = 0; i < places.branch_norms.size(); ++i)
      places.branch_norms[i] = made.norm(block.names.branch_norms[i], block.hidden, block.norm);
  if (block.delta.exists()) {
    made.delta_vectors(places, block);
  } else if (block.attention.head_norms) {
    const auto& names = block.names.head_norms;
    const NormKind kind = block.norm == NormKind::kLayer ? NormKind::kRms : block.norm;
    places.query_norm = made.norm(names[0], block.attention.head_dim, kind).gain;
    made.norm(names[1], block.attention.head_dim, kind);
  }
  biases(block.vectors_by_branch ? kOfAttention : 0, all.size());
  if (block.experts.bias) made.expert_biases(places, block);
  if (block.attention.sinks) made.sinks(places, block);
  return {made.take(), places};
}

std::string_view last_part(std::string_view name) { return name.substr(name.rfind('.') + 1); }

bool is_target(const LoraRecipe& lora, std::string_view name) {
  return std::find(lora.targets.begin(), lora.targets.end(), last_part(name)) != lora.targets.end();
}

// Blocks that are computed alike are of one kind, with this name.
std::string_view kind_name(const DecoderSpec& spec, std::int64_t layer) {
  if (!spec.attends(layer)) return "delta block";
  const bool has_window = spec.window.has(layer);
  if (!spec.rotates(layer)) return has_window ? "windowed unrotated block" : "unrotated block";
  return has_window ? "windowed block" : "block";
}

// By PEFT's names: the adapters of the second tensor wrap those of the first.
void add_expert_adapters(UnitLayout& layout, const BlockSpec& block, const LoraRecipe& lora) {
  const ExpertsSpec& experts = block.experts;
  const std::int64_t ranks = lora.rank * experts.count;
  const std::string name = layout.name + "." + std::string(block.names.expert_adapters);
  const auto add = [&](const std::string& of, std::int64_t in, std::int64_t out) {
    layout.add(adapter_matrix(of + ".lora_A.weight", ranks, in, /*is_first=*/true));
    layout.add(adapter_matrix(of + ".lora_B.weight", out, ranks, /*is_first=*/false));
  };
  add(name + ".base_layer", block.hidden, 2 * experts.width);
  add(name, experts.width, block.hidden);
}

// Freezes all parameters and adds adapters to be trained instead.
void freeze(const DecoderSpec& spec, const LoraRecipe& lora,
            std::vector<ModelLayout::Unit>& units) {
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    UnitLayout& layout = units[unit].layout;
    const bool is_block = unit > 0 && unit + 1 < units.size();
    const std::int64_t layer = static_cast<std::int64_t>(unit) - 1;
    UnitLayout trained = is_block ? adapter_layout(spec.block_at(layer), lora, layer)
                                  : UnitLayout{.name = layout.name};
    units[unit].frozen = std::exchange(layout, std::move(trained));
  }
}

}  // namespace

bool has_expert_adapters(const BlockSpec& block, const LoraRecipe& lora) {
  return block.experts.exist() && lora.exists() && lora.adapts_experts();
}

BlockParameters block_parameters(const BlockSpec& block, const LoraRecipe& lora) {
  PlacedBlock placed = placed_block(block, 0);
  int next = static_cast<int>(placed.layout.parameters.size());
  if (!lora.exists()) return placed.parameters;
  for (const Products& products : products_of(block))
    for (std::size_t part = 0; part < products.parts.size(); ++part) {
      if (!is_target(lora, products.parts[part].name)) continue;
      (placed.parameters.*products.place).adapters[part] = next;
      next += 2;
    }
  if (has_expert_adapters(block, lora)) placed.parameters.expert_adapters = next;
  return placed.parameters;
}

HeadParameters head_parameters(const DecoderSpec& spec) {
  const bool has_bias = spec.block.norm == NormKind::kLayer;
  const int gain = spec.tied ? 0 : 1;
  const int bias = has_bias ? gain + 1 : kNoParameter;
  return {.output = spec.tied ? std::max(gain, bias) + 1 : 0, .norm = {.gain = gain, .bias = bias}};
}

int token_parameter(const DecoderSpec& spec) { return spec.positions > 0 ? 1 : 0; }

std::vector<std::string_view> adapter_targets(const BlockNames& names) {
  std::vector<std::string_view> targets;
  const auto add = [&targets](std::string_view name) {
    if (!name.empty()) targets.push_back(last_part(name));
  };
  for (const std::string_view name : names.qkv) add(name);
  add(names.projection);
  for (const std::string_view name : names.delta.in) add(name);
  add(names.delta.out);
  const bool has_experts = !names.experts.empty();
  for (const std::string_view name : has_experts ? names.shared.in : names.mlp_in) add(name);
  add(has_experts ? names.shared.out : names.mlp_out);
  add(names.shared.logit);
  if (!names.expert_adapters.empty()) targets.push_back(kExpertsTarget);
  return targets;
}

UnitLayout embedding_layout(const DecoderSpec& spec, std::int64_t padded_vocab) {
  const std::int64_t hidden = spec.block.hidden;
  const auto name = [](std::string_view of) { return std::string(of) + ".weight"; };
  UnitLayout layout{.name = "embedding"};
  if (spec.positions > 0)
    layout.add(of_vocabulary(name(spec.position_embedding), spec.positions, hidden));
  layout.add(of_vocabulary(name(spec.token_embedding), spec.vocab, hidden));
  // A lookup needs no padding, but a product does.
  if (spec.tied && padded_vocab != 0) layout.pad_last(padded_vocab);
  return layout;
}

UnitLayout block_layout(const BlockSpec& block, std::int64_t layer) {
  return placed_block(block, layer).layout;
}

UnitLayout head_layout(const DecoderSpec& spec) {
  UnitLayout layout{.name = "head"};
  if (!spec.tied) layout.add(of_vocabulary("lm_head.weight", spec.vocab, spec.block.hidden));
  Parameters made(std::move(layout), "");
  made.norm(spec.final_norm, spec.block.hidden, spec.block.norm);
  return made.take();
}

UnitLayout adapter_layout(const BlockSpec& block, const LoraRecipe& lora, std::int64_t layer) {
  UnitLayout layout{.name = block_name(block, layer)};
  for (const Products& products : products_of(block))
    for (const Part& part : products.parts) {
      if (!is_target(lora, part.name)) continue;
      const std::string name = layout.name + "." + std::string(part.name) + ".lora_";
      layout.add(adapter_matrix(name + "A.weight", lora.rank, products.in, /*is_first=*/true));
      layout.add(adapter_matrix(name + "B.weight", part.out, lora.rank, /*is_first=*/false));
    }
  if (has_expert_adapters(block, lora)) add_expert_adapters(layout, block, lora);
  return layout;
}

DecoderSpec with_fp8(DecoderSpec spec, const ModelOptions& options) {
  spec.block.fp8 = options.fp8;
  // A frozen matrix has no gradient to cast for.
  if (options.lora.exists()) spec.block.fp8.wide_weight_gradients = true;
  return spec;
}

ModelLayout decoder_layout(const DecoderSpec& without_fp8, const ModelOptions& options) {
  const DecoderSpec spec = with_fp8(without_fp8, options);
  const LoraRecipe& lora = options.lora;
  std::map<std::string_view, std::shared_ptr<const UnitKind>> kinds;
  std::vector<ModelLayout::Unit> units;
  units.push_back({.kind = embedding_kind(spec, lora),
                   .layout = embedding_layout(spec, options.padded_vocab),
                   .borrowed = {}});
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
    const BlockSpec block = spec.block_at(layer);
    const std::string_view name = kind_name(spec, layer);
    auto& kind = kinds[name];
    if (!kind) kind = block_kind(name, block, lora);
    units.push_back({.kind = kind, .layout = block_layout(block, layer), .borrowed = {}});
  }
  ModelLayout::Unit head = {.kind = head_kind(spec, lora, options.padded_vocab),
                            .layout = head_layout(spec),
                            .borrowed = {}};
  if (spec.tied) head.borrowed.push_back({.unit = 0, .parameter = token_parameter(spec)});
  units.push_back(std::move(head));
  if (lora.exists()) freeze(spec, lora, units);
  return {{.hidden = spec.block.hidden, .vocab = spec.vocab}, std::move(units)};
}

}  // namespace sluice::engine
