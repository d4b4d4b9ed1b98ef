// ExpertStack: a tensor in files that has a matrix of every expert, where a model has a parameter
// for each. Files can have it in MXFP4, too, as "NAME_blocks" and "NAME_scales".
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::engine {

struct ExpertStack {
  enum class Order : std::uint8_t {
    kRows,   // [experts, parts * out, in]: an expert's parts follow each other
    kInTurn  // [experts, in, parts * out]: transposed, and columns of the parts alternate
  };

  std::string_view name;     // "mlp.experts.gate_up_proj", after the block's name
  std::string_view experts;  // "mlp.experts", of the parameters "mlp.experts.0.gate_proj.weight"
  std::array<std::string_view, 2> parts;  // "gate_proj", "up_proj"; the second may be empty
  Order order = Order::kRows;

  std::uint64_t count() const { return parts[1].empty() ? 1 : 2; }
  // "BLOCK.mlp.experts.3.up_proj.weight"; `block` includes its dot.
  std::string parameter(std::string_view block, std::uint64_t expert, std::uint64_t part) const {
    std::string made(block);
    return made.append(experts)
        .append(".")
        .append(std::to_string(expert))
        .append(".")
        .append(parts[part])
        .append(".weight");
  }
};

}  // namespace sluice::engine
