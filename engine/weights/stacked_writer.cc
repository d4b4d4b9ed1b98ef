#include "engine/weights/stacked_writer.h"

#include <algorithm>
#include <utility>

#include "engine/weights/quoting.h"

namespace sluice::engine {
namespace {

constexpr std::uint64_t kElementsAtOnce = std::uint64_t{1} << 20;

// The stack that begins with this parameter, and its block ("layers.3.").
struct Beginning {
  const ExpertStack* stack = nullptr;
  std::string_view block;
};

Beginning beginning_at(std::string_view parameter, const ParameterNames& names) {
  if (!names.exports_stacks) return {};
  for (const ExpertStack& stack : names.stacks) {
    const std::string first = stack.parameter("", 0, 0);
    if (parameter.ends_with(first))
      return {&stack, parameter.substr(0, parameter.size() - first.size())};
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<StackedWriter>> StackedWriter::create(aio::IoQueue& queue,
                                                             SafetensorsWriter::Options options,
                                                             std::span<const TensorSpec> parameters,
                                                             const ParameterNames& names) {
  std::unique_ptr<StackedWriter> made(new StackedWriter);
  const std::vector<TensorSpec> tensors = made->lay_out(parameters, names);
  SLUICE_ASSIGN_OR_RETURN(made->writer_,
                          SafetensorsWriter::create(queue, std::move(options), tensors));
  return made;
}

std::vector<TensorSpec> StackedWriter::lay_out(std::span<const TensorSpec> parameters,
                                               const ParameterNames& names) {
  std::vector<TensorSpec> tensors;
  for (std::size_t i = 0; i < parameters.size();) {
    const TensorSpec& first = parameters[i];
    const auto [stack, block] = beginning_at(first.name, names);
    TensorSpec tensor = first;
    if (stack == nullptr) {
      tensor.name = names.exported(first.name);
      targets_.push_back({.parameter = first.name, .tensor = tensor.name});
      tensors.push_back(std::move(tensor));
      ++i;
      continue;
    }
    const bool in_turn = stack->order == ExpertStack::Order::kInTurn;
    const std::uint64_t parts = stack->count();
    tensor.name = names.exported(std::string(block) + std::string(stack->name));
    std::uint64_t matrices = 0;
    for (; i < parameters.size() &&
           parameters[i].name == stack->parameter(block, matrices / parts, matrices % parts);
         ++i, ++matrices)
      targets_.push_back({.parameter = parameters[i].name,
                          .tensor = tensor.name,
                          .stack = in_turn ? stack : nullptr,
                          .part = matrices % parts,
                          .rows = first.shape[0],
                          .columns = first.shape[1]});
    tensor.shape = {matrices / parts, parts * first.shape[0], first.shape[1]};
    if (in_turn) std::swap(tensor.shape[1], tensor.shape[2]);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

Status StackedWriter::append(std::string_view parameter, std::span<const float> values) {
  if (next_ == targets_.size() || targets_[next_].parameter != parameter) {
    // Plain tensors may come in several ranges.
    if (next_ > 0 && targets_[next_ - 1].parameter == parameter)
      return writer_->append(targets_[next_ - 1].tensor, values);
    return Error(ErrorCode::kInvalidArgument,
                 "values of " + in_quotes(parameter) + " came out of order");
  }
  const Target& target = targets_[next_];
  if (target.stack == nullptr) {
    ++next_;
    return writer_->append(target.tensor, values);
  }
  const std::uint64_t elements = target.rows * target.columns;
  if (values.size() > elements - done_)
    return Error(ErrorCode::kInvalidArgument, "too many values of " + in_quotes(parameter));
  collected_.resize(target.stack->count() * elements);
  std::copy(values.begin(), values.end(),
            collected_.begin() + static_cast<std::ptrdiff_t>(target.part * elements + done_));
  done_ += values.size();
  if (done_ < elements) return {};
  done_ = 0;
  ++next_;
  return target.part + 1 < target.stack->count() ? Status() : write_expert(target);
}

// Some columns of the parts are rows of the file.
Status StackedWriter::write_expert(const Target& target) {
  const std::uint64_t parts = target.stack->count();
  const std::uint64_t wide = parts * target.rows;
  const std::uint64_t at_once =
      std::clamp(kElementsAtOnce / wide, std::uint64_t{1}, target.columns);
  std::vector<float> rows(at_once * wide);
  for (std::uint64_t first = 0; first < target.columns; first += at_once) {
    const std::uint64_t count = std::min(at_once, target.columns - first);
    for (std::uint64_t column = 0; column < wide; ++column) {
      const std::uint64_t row = column % parts * target.rows + column / parts;
      const float* const from = collected_.data() + row * target.columns + first;
      for (std::uint64_t i = 0; i < count; ++i) rows[i * wide + column] = from[i];
    }
    SLUICE_RETURN_IF_ERROR(writer_->append(target.tensor, std::span(rows).first(count * wide)));
  }
  return {};
}

}  // namespace sluice::engine
