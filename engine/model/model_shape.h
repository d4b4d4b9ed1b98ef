// ModelShape: the numbers that define one model of a family, and the options that a program adds.
// Without LibTorch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "aio/result.h"
#include "engine/model/fp8_recipe.h"
#include "engine/model/lora_recipe.h"

namespace sluice::engine {

inline constexpr std::string_view kGpt2Family = "gpt2";

struct ModelShape {
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t context_tokens = 0;
  std::int64_t vocab = 0;
  double dropout = 0;           // for embeddings, attention probabilities and residual branches
  std::int64_t ffn_hidden = 0;  // 0: 4 * hidden
  std::string family = std::string(kGpt2Family);  // ModelFamily::name()
  std::map<std::string, double> numbers;          // ModelFamily::numbers() by name
  // ModelFamily::lists() by name, without those that are empty.
  std::map<std::string, std::vector<double>> lists = {};

  std::int64_t ffn() const { return ffn_hidden == 0 ? 4 * hidden : ffn_hidden; }
};

struct ModelOptions {
  ModelShape shape;
  std::int64_t padded_vocab = 0;  // rows of the token embedding in its slot; 0: the vocabulary
  std::int64_t chunk_rows = 0;    // rows of the loss at a time; 0: from the shape
  LoraRecipe lora = {};           // trains adapters instead of the model
  Fp8Recipe fp8 = {};
};

// The number of families with experts that multiplies the balance loss of their router
// (expert_load.h), as it is added to the loss; 0, or missing: there is none.
inline constexpr std::string_view kBalanceCoefficient = "router_aux_loss_coef";
double balance_coefficient(const ModelShape& shape);

// The checks that all families share. kInvalidArgument with a sentence that names the number at
// fault.
Status check_sizes(const ModelShape& shape);

// "the model cannot be built: <sentence>".
Error cannot_build(const std::string& sentence);

}  // namespace sluice::engine
