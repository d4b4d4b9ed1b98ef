#include "offload/state/state_tiles.h"

#include <algorithm>
#include <bit>

#include "aio/check.h"
#include "aio/units.h"
#include "offload/adamw/half.h"
#include "offload/adamw/moment_rounding.h"
#include "offload/adamw/split_master.h"

namespace sluice::offload {
namespace {

constexpr std::uint64_t kFieldAlignment = 64;

struct FieldSizes {
  std::uint64_t first;  // lo or the master; 0: neither
  std::uint64_t moment;
};

FieldSizes field_sizes(StateForm form, std::uint64_t elements) {
  return {.first = align_up(master_bytes_per_element(form.param) * elements, kFieldAlignment),
          .moment = align_up(element_bytes(form.moments) * elements, kFieldAlignment)};
}

std::uint16_t narrowed(float moment, std::uint32_t random) {
  const std::uint32_t bits = stored_moment_bits(std::bit_cast<std::uint32_t>(moment));
  return round_moment(std::bit_cast<float>(bits), random);
}

// The moments of AdamW, in a canonical slice.
std::span<float> moment(const StateSlice& slice) { return slice.fields[1]; }
std::span<float> second_moment(const StateSlice& slice) { return slice.fields[2]; }

void pack_moments(const StateSlice& from, const AdamwArrays& to) {
  const std::span<const float> m = moment(from);
  const std::span<const float> v = second_moment(from);
  if (to.moment_type == ElementType::kFp32) {
    std::copy(m.begin(), m.end(), to.m);
    std::copy(v.begin(), v.end(), to.v);
    return;
  }
  for (std::size_t i = 0; i < m.size(); ++i) {
    const std::uint32_t random = moment_bits(to.moment_keys, to.first_element + i);
    to.m16[i] = narrowed(m[i], random & 0xFFFF);
    to.v16[i] = narrowed(v[i], random >> 16);
  }
}

}  // namespace

std::uint64_t state_bytes(StateForm form, std::uint64_t elements) {
  const FieldSizes last = field_sizes(form, elements % kTileElements);
  return elements / kTileElements * tile_bytes(form) + last.first + 2 * last.moment;
}

StateTile fields_at(StateForm form, std::byte* master, std::byte* m, std::byte* v) {
  StateTile fields;
  if (form.param == ParamForm::kSplit) {
    fields.lo = reinterpret_cast<std::uint16_t*>(master);
  } else if (form.param != ParamForm::kFp32) {
    fields.master = reinterpret_cast<float*>(master);
  }
  if (form.moments == ElementType::kFp32) {
    fields.m = reinterpret_cast<float*>(m);
    fields.v = reinterpret_cast<float*>(v);
  } else {
    fields.m16 = reinterpret_cast<std::uint16_t*>(m);
    fields.v16 = reinterpret_cast<std::uint16_t*>(v);
  }
  return fields;
}

StateTile state_tile(StateForm form, std::byte* tile, std::uint64_t elements) {
  SLUICE_DCHECK(reinterpret_cast<std::uintptr_t>(tile) % kFieldAlignment == 0, "an aligned tile");
  const FieldSizes sizes = field_sizes(form, elements);
  std::byte* const m = tile + sizes.first;
  return fields_at(form, tile, m, m + sizes.moment);
}

AdamwArrays tile_arrays(StateForm form, const StateTile& tile, void* param) {
  AdamwArrays arrays{.param_form = form.param,
                     .moment_type = form.moments,
                     .lo = tile.lo,
                     .m = tile.m,
                     .v = tile.v,
                     .m16 = tile.m16,
                     .v16 = tile.v16};
  if (form.param == ParamForm::kFp32) {
    arrays.master = static_cast<float*>(param);
  } else {
    arrays.master = tile.master;
    arrays.param16 = static_cast<std::uint16_t*>(param);
  }
  return arrays;
}

void pack_state(const StateSlice& from, const AdamwArrays& to) {
  const std::span<const float> masters = from.master();
  pack_moments(from, to);
  if (to.master != nullptr) std::copy(masters.begin(), masters.end(), to.master);
  if (to.param_form == ParamForm::kFp32) return;
  pack_parameters(to.param_form, masters, to.param16);
  if (to.param_form != ParamForm::kSplit) return;
  for (std::size_t i = 0; i < masters.size(); ++i) to.lo[i] = split_master(masters[i]).lo;
}

void pack_parameters(ParamForm form, std::span<const float> masters, void* parameters) {
  if (form == ParamForm::kFp32) {
    std::copy(masters.begin(), masters.end(), static_cast<float*>(parameters));
    return;
  }
  auto* const halves = static_cast<std::uint16_t*>(parameters);
  for (std::size_t i = 0; i < masters.size(); ++i) {
    halves[i] =
        form == ParamForm::kFp32AndFp16 ? fp16_from_float(masters[i]) : split_master(masters[i]).hi;
  }
}

void unpack_state(const AdamwArrays& from, const StateSlice& to) {
  const std::uint64_t elements = to.elements();
  const std::span<float> masters = to.master();
  if (from.moment_type == ElementType::kFp32) {
    std::copy_n(from.m, elements, moment(to).data());
    std::copy_n(from.v, elements, second_moment(to).data());
  } else {
    std::transform(from.m16, from.m16 + elements, moment(to).begin(), float_from_bf16);
    std::transform(from.v16, from.v16 + elements, second_moment(to).begin(), float_from_bf16);
  }
  if (from.param_form != ParamForm::kSplit) {
    std::copy_n(from.master, elements, masters.data());
    return;
  }
  for (std::size_t i = 0; i < elements; ++i)
    masters[i] = join_master({.hi = from.param16[i], .lo = from.lo[i]});
}

}  // namespace sluice::offload
