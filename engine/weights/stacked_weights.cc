#include "engine/weights/stacked_weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

namespace sluice::engine {
namespace {

constexpr std::string_view kBlocks = "_blocks";
constexpr std::string_view kScales = "_scales";
constexpr std::uint64_t kBlockBytes = 16;
constexpr std::uint64_t kBlockNumbers = 2 * kBlockBytes;
// Far more than any model has; a tensor with more is no stack.
constexpr std::uint64_t kMostExperts = 65536;
constexpr std::uint64_t kElementsAtOnce = std::uint64_t{1} << 20;

// How a stack's tensor is called, and the block that it belongs to.
struct Found {
  const ExpertStack* stack = nullptr;
  std::string_view block;  // "model.layers.3."
};

std::optional<Found> stack_of(std::string_view name, const ParameterNames& names) {
  for (const ExpertStack& stack : names.stacks)
    if (name.ends_with(stack.name)) {
      const std::string_view block = name.substr(0, name.size() - stack.name.size());
      if (block.ends_with('.')) return Found{&stack, block};
    }
  return std::nullopt;
}

// Whether a family keeps what stands next to the experts under another name than the tensor's, as
// Mixtral's router: "layers.0.mlp.gate.weight" is "layers.0.block_sparse_moe.gate.weight".
std::optional<std::string> moved(std::string_view name, const ParameterNames& names) {
  const auto home_of = [](std::string_view of) { return of.substr(0, of.find('.') + 1); };
  for (const ExpertStack& stack : names.stacks) {
    const std::string_view from = home_of(stack.name);
    const std::string_view to = home_of(stack.experts);
    const std::size_t at = name.find("." + std::string(from));
    if (from == to || at == std::string_view::npos) continue;
    return std::string(name.substr(0, at + 1)).append(to).append(name.substr(at + 1 + from.size()));
  }
  return std::nullopt;
}

float mxfp4_number(unsigned bits, int exponent) {
  constexpr std::array<float, 8> kNumbers = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  const float number = std::ldexp(kNumbers[bits & 7U], exponent);
  return (bits & 8U) != 0 ? -number : number;
}

}  // namespace

std::unique_ptr<WeightSource> StackedWeights::over(std::unique_ptr<WeightSource> source,
                                                   const ParameterNames& names) {
  std::unique_ptr<StackedWeights> made(new StackedWeights(std::move(source)));
  for (const TensorInfo& tensor : made->source_->tensors())
    if (!made->add_stack(tensor, names)) made->tensors_.push_back(tensor);
  if (made->stacks_.empty()) return std::move(made->source_);
  for (std::size_t i = 0; i < made->tensors_.size(); ++i)
    made->by_name_.emplace(made->tensors_[i].name, i);
  return made;
}

// Whether the tensor is a stack, or the scales of one.
bool StackedWeights::add_stack(const TensorInfo& tensor, const ParameterNames& names) {
  std::string_view name = tensor.name;
  const auto of_scales = [&](std::string_view end) {
    return name.ends_with(end) && tensor.dtype == DType::kU8;
  };
  const bool is_scales = of_scales(kScales);
  const bool is_mxfp4 = of_scales(kBlocks);
  if (is_scales) name.remove_suffix(kScales.size());
  if (is_mxfp4) name.remove_suffix(kBlocks.size());
  const std::optional<Found> found = stack_of(name, names);
  if (!found) return add_moved(tensor, names);
  const auto partner = [&](std::string_view end) {
    return source_->find(std::string(name).append(end));
  };
  if (is_scales) return partner(kBlocks) != nullptr;
  const std::vector<std::uint64_t>& shape = tensor.shape;
  const std::uint64_t parts = found->stack->count();
  Stack stack = {.name = std::string(name),
                 .order = found->stack->order,
                 .is_mxfp4 = is_mxfp4,
                 .parts = parts};
  std::uint64_t wide = 0;
  if (is_mxfp4) {
    const TensorInfo* const scales = partner(kScales);
    if (shape.size() != 4 || shape[3] != kBlockBytes || scales == nullptr ||
        scales->dtype != DType::kU8 || scales->shape != std::vector(shape.begin(), shape.end() - 1))
      return false;
    wide = shape[1];
    stack.in = shape[2] * kBlockNumbers;
  } else {
    if (shape.size() != 3 || !is_weight_dtype(tensor.dtype)) return false;
    const bool in_turn = stack.order == ExpertStack::Order::kInTurn;
    wide = shape[in_turn ? 2 : 1];
    stack.in = shape[in_turn ? 1 : 2];
  }
  if (shape[0] > kMostExperts || wide % parts != 0) return false;
  stack.experts = shape[0];
  stack.out = wide / parts;
  for (std::uint64_t expert = 0; expert < stack.experts; ++expert)
    for (std::uint64_t part = 0; part < parts; ++part) {
      TensorInfo matrix = tensor;
      matrix.name = found->stack->parameter(found->block, expert, part);
      matrix.dtype = is_mxfp4 ? DType::kBF16 : tensor.dtype;
      matrix.shape = {stack.out, stack.in};
      matrix.elements = stack.out * stack.in;
      matrices_[matrix.name] = {.stack = stacks_.size(), .expert = expert, .part = part};
      tensors_.push_back(std::move(matrix));
    }
  stacks_.push_back(std::move(stack));
  return true;
}

// A matrix under another name: a stack of one.
bool StackedWeights::add_moved(const TensorInfo& tensor, const ParameterNames& names) {
  const std::optional<std::string> name = moved(tensor.name, names);
  if (!name || tensor.shape.size() != 2 || !is_weight_dtype(tensor.dtype)) return false;
  TensorInfo matrix = tensor;
  matrix.name = *name;
  matrices_[matrix.name] = {.stack = stacks_.size()};
  stacks_.push_back(
      {.name = tensor.name, .experts = 1, .out = tensor.shape[0], .in = tensor.shape[1]});
  tensors_.push_back(std::move(matrix));
  return true;
}

const TensorInfo* StackedWeights::find(std::string_view name) const {
  const auto entry = by_name_.find(std::string(name));
  return entry == by_name_.end() ? nullptr : &tensors_[entry->second];
}

std::string StackedWeights::place_of(std::string_view name) const {
  const auto entry = matrices_.find(std::string(name));
  if (entry == matrices_.end()) return source_->place_of(name);
  const Stack& stack = stacks_[entry->second.stack];
  return source_->place_of(stack.is_mxfp4 ? stack.name + std::string(kBlocks) : stack.name);
}

Status StackedWeights::read(std::string_view name, std::uint64_t first_element,
                            std::span<float> values) {
  const auto entry = matrices_.find(std::string(name));
  if (entry == matrices_.end()) return source_->read(name, first_element, values);
  const Matrix& matrix = entry->second;
  const Stack& stack = stacks_[matrix.stack];
  const std::uint64_t elements = stack.out * stack.in;
  if (first_element > elements || values.size() > elements - first_element)
    return Error(ErrorCode::kInvalidArgument,
                 std::string(name) + " has " + std::to_string(elements) + " elements, and " +
                     std::to_string(values.size()) + " from " + std::to_string(first_element) +
                     " on were asked for");
  if (!stack.is_mxfp4 && stack.order == ExpertStack::Order::kRows)
    return source_->read(
        stack.name,
        matrix.expert * stack.expert_elements() + matrix.part * elements + first_element, values);
  SLUICE_RETURN_IF_ERROR(load(matrix.stack, matrix.expert));
  const auto from = std::span(loaded_).subspan(matrix.part * elements + first_element);
  std::copy_n(from.begin(), values.size(), values.begin());
  return {};
}

Status StackedWeights::load(std::size_t stack, std::uint64_t expert) {
  if (!loaded_.empty() && loaded_stack_ == stack && loaded_expert_ == expert) return {};
  const Stack& of = stacks_[stack];
  loaded_.resize(of.expert_elements());
  const Status status = of.is_mxfp4 ? load_mxfp4(of, expert) : load_in_turn(of, expert);
  if (!status.ok()) loaded_.clear();
  loaded_stack_ = stack;
  loaded_expert_ = expert;
  return status;
}

// Some rows of the file are columns of the parts.
Status StackedWeights::load_in_turn(const Stack& stack, std::uint64_t expert) {
  const std::uint64_t wide = stack.parts * stack.out;
  const std::uint64_t at_once = std::clamp(kElementsAtOnce / wide, std::uint64_t{1}, stack.in);
  std::vector<float> rows(at_once * wide);
  for (std::uint64_t first = 0; first < stack.in; first += at_once) {
    const std::uint64_t count = std::min(at_once, stack.in - first);
    SLUICE_RETURN_IF_ERROR(source_->read(stack.name, (expert * stack.in + first) * wide,
                                         std::span(rows).first(count * wide)));
    for (std::uint64_t column = 0; column < wide; ++column) {
      const std::uint64_t row = column % stack.parts * stack.out + column / stack.parts;
      float* const to = loaded_.data() + row * stack.in + first;
      for (std::uint64_t i = 0; i < count; ++i) to[i] = rows[i * wide + column];
    }
  }
  return {};
}

Status StackedWeights::load_mxfp4(const Stack& stack, std::uint64_t expert) {
  const std::uint64_t wide = stack.parts * stack.out;
  const std::uint64_t blocks = stack.in / kBlockNumbers;  // of a row
  const std::uint64_t row_bytes = blocks * kBlockBytes;
  const std::uint64_t at_once =
      std::clamp(kElementsAtOnce / std::max(row_bytes, std::uint64_t{1}), std::uint64_t{1}, wide);
  std::vector<float> bytes(at_once * row_bytes);
  std::vector<float> scales(at_once * blocks);
  for (std::uint64_t first = 0; first < wide; first += at_once) {
    const std::uint64_t count = std::min(at_once, wide - first);
    const std::uint64_t before = expert * wide + first;
    SLUICE_RETURN_IF_ERROR(source_->read(stack.name + std::string(kBlocks), before * row_bytes,
                                         std::span(bytes).first(count * row_bytes)));
    SLUICE_RETURN_IF_ERROR(source_->read(stack.name + std::string(kScales), before * blocks,
                                         std::span(scales).first(count * blocks)));
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t row = (first + i) % stack.parts * stack.out + (first + i) / stack.parts;
      float* const to = loaded_.data() + row * stack.in;
      for (std::uint64_t byte = 0; byte < row_bytes; ++byte) {
        constexpr int kBias = 127;
        const int exponent = static_cast<int>(scales[i * blocks + byte / kBlockBytes]) - kBias;
        const auto both = static_cast<unsigned>(bytes[i * row_bytes + byte]);
        to[2 * byte] = mxfp4_number(both & 15U, exponent);
        to[2 * byte + 1] = mxfp4_number(both >> 4U, exponent);
      }
    }
  }
  return {};
}

}  // namespace sluice::engine
