// What an optimizer keeps of each element, field by field, and the one shape in which it goes
// between tiers, ranks and checkpoints: fp32, whatever a tier or a file stores.
//
// An optimizer with other fields has another row here, and kernels of its own (offload/adamw): what
// moves state goes by the fields' number and roles.
//
// Memory:  a slice owns nothing.
// Threads: values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace sluice::offload {

struct StateField {
  // The masters make the parameters. Moments begin at zero, and may be stored as bf16.
  enum class Role : std::uint8_t { kMaster, kMoment };

  std::string_view name;  // of a checkpoint's files
  Role role = Role::kMoment;
};

// AdamW's, by PyTorch's names. The master comes first.
inline constexpr std::array kStateFields = {StateField{"master", StateField::Role::kMaster},
                                            StateField{"exp_avg"}, StateField{"exp_avg_sq"}};

// Elements [first_element, first_element + elements()) of a unit, or of a parameter. T is float, or
// const float.
template <typename T>
struct StateSliceOf {
  std::uint64_t first_element = 0;
  std::array<std::span<T>, kStateFields.size()> fields;  // equally long

  std::span<T> master() const { return fields.front(); }
  std::uint64_t elements() const { return fields.front().size(); }
  // `count` elements from the `offset`th on, which is `first` of what they are counted in.
  StateSliceOf part(std::uint64_t offset, std::uint64_t count, std::uint64_t first) const {
    StateSliceOf slice{.first_element = first, .fields = fields};
    for (std::span<T>& field : slice.fields) field = field.subspan(offset, count);
    return slice;
  }
  operator StateSliceOf<const T>() const {  // NOLINT(google-explicit-constructor): as of a span
    StateSliceOf<const T> slice{.first_element = first_element};
    for (std::size_t i = 0; i < fields.size(); ++i) slice.fields[i] = fields[i];
    return slice;
  }
};

using StateSlice = StateSliceOf<float>;
using ConstStateSlice = StateSliceOf<const float>;

// In memory that has room for `stride` elements of every field, one field after another.
inline StateSlice state_slice_in(std::span<float> memory, std::uint64_t first_element,
                                 std::uint64_t elements, std::uint64_t stride) {
  StateSlice slice{.first_element = first_element};
  for (std::size_t i = 0; i < slice.fields.size(); ++i)
    slice.fields[i] = memory.subspan(i * stride, elements);
  return slice;
}

}  // namespace sluice::offload
