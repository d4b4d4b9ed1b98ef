// StackedWeights: a WeightSource in which the stacks of experts of another one (ExpertStack) are
// each expert's matrices, under the names of the model's parameters. All else is unchanged.
//
// MXFP4 ("OCP Microscaling Formats", 2023) becomes bf16, exactly. Blocks of 32 numbers with 4 bits
// each are U8 [experts, parts * out, in / 32, 16], the low half of a byte first. The exponents of
// blocks are U8 [experts, parts * out, in / 32]. Rows of parts alternate.
//
// Memory:  a stack that is not in the order of the parameters is read one expert at a time, which
//          is kept in fp32. Reading the matrices in their order is thus one pass.
// Threads, errors: the other source's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/weights/parameter_names.h"
#include "engine/weights/weight_source.h"

namespace sluice::engine {

class StackedWeights final : public WeightSource {
 public:
  // `source` itself if it has no stacks of these names.
  static std::unique_ptr<WeightSource> over(std::unique_ptr<WeightSource> source,
                                            const ParameterNames& names);

  std::span<const TensorInfo> tensors() const override { return tensors_; }
  const TensorInfo* find(std::string_view name) const override;
  Status read(std::string_view name, std::uint64_t first_element, std::span<float> values) override;
  std::string place_of(std::string_view name) const override;

 private:
  struct Stack {
    std::string name;  // in the source
    ExpertStack::Order order = ExpertStack::Order::kRows;
    bool is_mxfp4 = false;
    std::uint64_t experts = 0;
    std::uint64_t parts = 1;
    std::uint64_t out = 0;  // of one part
    std::uint64_t in = 0;

    std::uint64_t expert_elements() const { return parts * out * in; }
  };
  // One matrix of a stack.
  struct Matrix {
    std::size_t stack = 0;
    std::uint64_t expert = 0;
    std::uint64_t part = 0;
  };

  explicit StackedWeights(std::unique_ptr<WeightSource> source) : source_(std::move(source)) {}
  bool add_stack(const TensorInfo& tensor, const ParameterNames& names);
  bool add_moved(const TensorInfo& tensor, const ParameterNames& names);
  Status load(std::size_t stack, std::uint64_t expert);
  Status load_in_turn(const Stack& stack, std::uint64_t expert);
  Status load_mxfp4(const Stack& stack, std::uint64_t expert);

  std::unique_ptr<WeightSource> source_;
  std::vector<TensorInfo> tensors_;
  std::vector<Stack> stacks_;
  std::unordered_map<std::string, std::size_t> by_name_;  // into tensors_
  std::unordered_map<std::string, Matrix> matrices_;
  // The expert that was read last: its parts, each [out, in].
  std::vector<float> loaded_;
  std::size_t loaded_stack_ = 0;
  std::uint64_t loaded_expert_ = 0;
};

}  // namespace sluice::engine
