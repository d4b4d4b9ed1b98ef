// Mixture of experts: a router chooses some of many small feed-forwards for each token.
//
// Shapes:   T tokens, H hidden, E experts, k of them for each token. R = T k rows are sorted by
//           expert, and by token within an expert. Matrices of experts are [out, in].
// dtypes:   rows and matrices are bf16, fp16, fp32 or fp64. Softmax, weights and sums over k are
//           fp32 (fp64 with fp64). Gradients of matrices are fp32 (fp64 with fp64).
// Devices:  CPU and CUDA. On Hopper and on data-centre Blackwell, products of bf16 rows are grouped
//           (LibTorch's _grouped_mm) and nothing waits for the device. Elsewhere, and for the other
//           types, one product is made for each expert, and CUDA is waited for once per ExpertRows.
// Bits:     the same inputs give the same bits: sorting is stable, and every sum has a fixed order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace sluice::engine {

struct RoutingRule {
  std::int64_t per_token = 1;  // k, at most E
  bool renormalises = false;   // a token's weights are divided by their sum
  bool fp32_weights = false;   // weights are not rounded to the dtype of the logits
};

// Where tokens go. Among equally probable experts, lower numbers are chosen first.
struct Routing {
  at::Tensor probabilities;  // [T, E], the softmax of the logits
  at::Tensor chosen;         // int64 [T, k], most probable first
  at::Tensor weights;        // [T, k]
};
Routing route(const at::Tensor& logits, const RoutingRule& rule);

// [T, E] in the dtype of `numbers`: a token's weight of each expert, 0 if it was not chosen.
at::Tensor all_weights(const Routing& routing, const at::Tensor& numbers);

// The gradient of the logits [T, E], in `dtype`, from that of the weights [T, k]. The rounding of
// the weights is not differentiated. `grad_probabilities`: [E], of every token's probabilities in
// addition; undefined: none.
at::Tensor route_backward(const Routing& routing, const RoutingRule& rule,
                          const at::Tensor& grad_weights, at::ScalarType dtype,
                          const at::Tensor& grad_probabilities = {});

// The rows of tokens in the order of their experts.
class ExpertRows {
 public:
  ExpertRows(const at::Tensor& chosen, std::int64_t experts);

  // From [T, n] to [R, n]: a token's row once for each of its experts.
  at::Tensor gathered(const at::Tensor& of_tokens) const;
  // From [T, k] to a column [R, 1].
  at::Tensor gathered_weights(const at::Tensor& weights) const;
  // From [R, n] to [T, n]: the sum of a token's rows, times `weights` [T, k] unless undefined. It
  // is rounded once.
  at::Tensor summed(const at::Tensor& rows, const at::Tensor& weights = {}) const;
  // [R, E] in the dtype of `numbers`: 1 where a row is the expert's. `chosen`: the constructor's.
  at::Tensor marks(const at::Tensor& chosen, const at::Tensor& numbers) const;
  // From [R] to [T, k].
  at::Tensor by_token(const at::Tensor& of_rows) const;

  // Adds the number of each expert's rows to `counts`, int64 [E].
  void add_counts_to(const at::Tensor& counts) const;
  // Where each expert's rows end, int32 [E], on the device.
  const at::Tensor& ends() const { return ends_; }
  // Calls visit(expert, first row, rows) for all experts. The first call waits for the device.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    std::int64_t first = 0;
    std::int64_t expert = 0;
    for (const std::int64_t end : ends_on_host()) {
      visit(expert++, first, end - first);
      first = end;
    }
  }

 private:
  const std::vector<std::int64_t>& ends_on_host() const;

  std::int64_t per_token_;
  at::Tensor order_;   // int64 [R]: the choice, token * k + place
  at::Tensor tokens_;  // int64 [R]
  at::Tensor places_;  // int64 [k, T]: the row of each choice
  at::Tensor ends_;
  mutable std::vector<std::int64_t> ends_on_host_;
};

// Matrices of one shape, `parts` for each expert: views in the order of experts. All parts of an
// expert have one input, and their outputs are concatenated. If they are gradients, all may be
// undefined.
class ExpertMatrices {
 public:
  ExpertMatrices(std::vector<at::Tensor> matrices, int parts);

  bool defined() const { return matrices_.front().defined(); }
  int parts() const { return parts_; }
  std::int64_t experts() const { return static_cast<std::int64_t>(matrices_.size()) / parts_; }
  std::int64_t part_width() const { return matrices_.front().size(0); }
  std::int64_t out() const { return parts_ * part_width(); }
  std::int64_t in() const { return matrices_.front().size(1); }
  // All as one view [E, out, in]; undefined if they are not evenly spaced in one storage, with the
  // parts of an expert side by side.
  const at::Tensor& stacked() const { return stacked_; }
  const at::Tensor& part(std::int64_t expert, int part) const;
  // [out, in]: a view if the expert's parts are side by side, else a copy.
  at::Tensor of(std::int64_t expert) const;

 private:
  std::vector<at::Tensor> matrices_;
  int parts_;
  at::Tensor stacked_;
};

// Each row [R, in] times its expert's matrices, transposed: [R, out].
at::Tensor expert_products(const at::Tensor& rows, const ExpertMatrices& matrices,
                           const ExpertRows& groups);
// The gradient of `rows`, [R, in], from that of the products, [R, out].
at::Tensor expert_input_gradient(const at::Tensor& grad_products, const ExpertMatrices& matrices,
                                 const ExpertRows& groups);
// Adds the gradients of the matrices to `gradients`, or overwrites these without reading them.
// Without rows, an expert's gradient is zero. Grouped products are rounded to bf16 before they are
// added, and need memory for at most kGroupedGradientNumbers of them. For other products
// linear.h's rules hold.
void put_expert_gradients(const ExpertMatrices& gradients, const at::Tensor& grad_products,
                          const at::Tensor& rows, const ExpertRows& groups, bool overwrite);
inline constexpr std::int64_t kGroupedGradientNumbers = std::int64_t{1} << 27;

}  // namespace sluice::engine
