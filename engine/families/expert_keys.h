// The keys of a config.json about experts that several families have. Without LibTorch.
#pragma once

#include <string_view>
#include <vector>

#include "engine/families/family_table.h"

namespace sluice::engine {

// output_router_logits, which turns the balance loss on, and router_aux_loss_coef; its number.
std::vector<ConfigRow> balance_rows(std::string_view classes);

// How many experts there are, and how many compute each token.
Status check_experts(const ExpertsSpec& experts);

// The two tensors in which transformers 5 has a block's experts in memory.
constexpr std::array<ExpertStack, 2> expert_stacks(
    std::string_view experts, std::array<std::string_view, 2> in, std::string_view out,
    ExpertStack::Order order = ExpertStack::Order::kRows) {
  return {{{.name = "mlp.experts.gate_up_proj", .experts = experts, .parts = in, .order = order},
           {.name = "mlp.experts.down_proj", .experts = experts, .parts = {out}, .order = order}}};
}

}  // namespace sluice::engine
