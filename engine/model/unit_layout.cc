#include "engine/model/unit_layout.h"

#include <functional>
#include <numeric>
#include <utility>

#include "aio/check.h"

namespace sluice::engine {
namespace {

std::uint64_t product(const std::vector<std::int64_t>& shape) {
  return static_cast<std::uint64_t>(
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
}

std::uint64_t aligned(std::uint64_t elements) {
  return (elements + kParameterAlignment - 1) / kParameterAlignment * kParameterAlignment;
}

}  // namespace

std::vector<std::int64_t> ParameterSpec::slot_shape() const {
  std::vector<std::int64_t> padded = shape;
  padded[0] = padded_rows;
  return padded;
}

void UnitLayout::add(ParameterSpec parameter) {
  SLUICE_CHECK(slot_elements == elements, "only the last parameter of a unit is padded");
  SLUICE_CHECK(parameters.empty() || parameters.back().group <= parameter.group,
               "parameters of a unit lie group by group");
  parameter.elements = product(parameter.shape);
  parameter.first_element = elements;
  parameter.padded_rows = parameter.shape[0];
  elements = slot_elements = aligned(elements + parameter.elements);
  parameters.push_back(std::move(parameter));
}

void UnitLayout::pad_last(std::int64_t rows) {
  ParameterSpec& last = parameters.back();
  SLUICE_CHECK(rows >= last.shape[0], "a padded slot is not shorter than its parameter");
  last.padded_rows = rows;
  slot_elements = aligned(last.first_element + product(last.slot_shape()));
}

std::uint64_t UnitLayout::elements_of_group(int group) const {
  std::uint64_t sum = 0;
  for (const ParameterSpec& parameter : parameters) {
    if (parameter.group == group) sum += aligned(parameter.elements);
  }
  return sum;
}

std::uint64_t UnitLayout::parameter_elements() const {
  std::uint64_t sum = 0;
  for (const ParameterSpec& parameter : parameters) sum += parameter.elements;
  return sum;
}

}  // namespace sluice::engine
