// The state that an optimizer keeps per element, field by field, and the one shape in which it
// moves between tiers, ranks and checkpoints. That shape is fp32, whatever a tier or a file stores.
//
// An optimizer with other fields needs another row here and its own kernels (offload/adamw). Code
// that moves state depends only on the number of fields and their roles.
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
  // The parameters are made from the masters. Moments start at zero and may be stored as bf16.
  enum class Role : std::uint8_t { kMaster, kMoment };

  std::string_view name;  // used in checkpoint file names
  Role role = Role::kMoment;
};

// AdamW's fields, with PyTorch's names. The master comes first.
inline constexpr std::array kStateFields = {StateField{"master", StateField::Role::kMaster},
                                            StateField{"exp_avg"}, StateField{"exp_avg_sq"}};

// Elements [first_element, first_element + elements()) of a unit or of a parameter. T is float or
// const float.
template <typename T>
struct StateSliceOf {
  std::uint64_t first_element = 0;
  std::array<std::span<T>, kStateFields.size()> fields;  // equal lengths

  std::span<T> master() const { return fields.front(); }
  std::uint64_t elements() const { return fields.front().size(); }
  // `count` elements from `offset` on; `first` becomes the part's first_element.
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

// A slice of `memory`, which has room for `stride` elements of every field, one field after
// another.
inline StateSlice state_slice_in(std::span<float> memory, std::uint64_t first_element,
                                 std::uint64_t elements, std::uint64_t stride) {
  StateSlice slice{.first_element = first_element};
  for (std::size_t i = 0; i < slice.fields.size(); ++i)
    slice.fields[i] = memory.subspan(i * stride, elements);
  return slice;
}

}  // namespace sluice::offload
