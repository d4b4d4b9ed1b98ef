// UnitLayout: the layout of a unit's parameters in its one flat array. Without LibTorch.
//
// Flat order: trainable parameters, by parameter group, each aligned to kParameterAlignment
// elements. The gap after a parameter belongs to it, and is always zero (its gradient is zero,
// too). Masters, moments, 16-bit parameters and gradients are all stored in this order. A slot may
// be longer than the flat order: its last parameter then has more rows than the state
// (`padded_rows`), which always stay zero.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::engine {

constexpr std::uint64_t kParameterAlignment = 128;  // 256 bytes of a 16-bit number

enum ParameterGroup : int {
  kDecayed = 0,   // matrices and embeddings
  kUndecayed = 1  // vectors: biases and norms
};

struct ParameterSpec {
  std::string name;  // Hugging Face's: "h.3.attn.c_attn.weight"
  std::vector<std::int64_t> shape;
  int group = kDecayed;
  std::uint64_t first_element = 0;  // in the unit's flat order
  std::uint64_t elements = 0;
  std::int64_t padded_rows = 0;  // shape[0], or more in a padded slot
  float initial_std = 0;         // normal distribution
  float initial_bound = 0;       // uniform in +-bound
  // Logarithms of uniform numbers from 0.01 to this. All three 0: all are initial_value.
  float initial_log_bound = 0;
  float initial_value = 0;
  // Its gradient is one product per micro-batch, which the first micro-batch's backward can write
  // instead of adding to it (PassContext::overwrites).
  bool gradient_is_product = false;
  // Not encoded in a frozen base: a router's rounding would choose other experts. Follows
  // the matrices that are.
  bool keeps_precision = false;
  // Belongs to an embedding or a head, which have at least 8 bits in a frozen base. bitsandbytes
  // leaves both as they are.
  bool is_of_vocabulary = false;

  std::vector<std::int64_t> slot_shape() const;
};

struct UnitLayout {
  std::string name;  // "embedding", "h.3", "head"
  std::vector<ParameterSpec> parameters;
  std::uint64_t elements = 0;       // of the flat order, a multiple of kParameterAlignment
  std::uint64_t slot_elements = 0;  // elements, or more when the last parameter is padded

  // Appends a parameter; groups must not descend. Sets its first_element and elements.
  void add(ParameterSpec parameter);
  // Gives the last parameter more rows in the slot.
  void pad_last(std::int64_t rows);
  // Elements of one group, with the gaps after its parameters.
  std::uint64_t elements_of_group(int group) const;
  // Without the gaps.
  std::uint64_t parameter_elements() const;
};

}  // namespace sluice::engine
