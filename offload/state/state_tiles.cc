#include "offload/state/state_tiles.h"

#include <algorithm>

#include "aio/check.h"
#include "aio/units.h"
#include "offload/adamw/half.h"
#include "offload/adamw/split_master.h"

namespace sluice::offload {
namespace {

constexpr std::uint64_t kFieldAlignment = 64;

struct FieldSizes {
  std::uint64_t first;  // lo, or the master; 0: neither
  std::uint64_t moment;
};

FieldSizes field_sizes(ParamForm form, std::uint64_t elements) {
  const std::uint64_t first_bytes = form == ParamForm::kSplit  ? 2
                                    : form == ParamForm::kFp32 ? 0
                                                               : 4;
  return {.first = align_up(first_bytes * elements, kFieldAlignment),
          .moment = align_up(sizeof(float) * elements, kFieldAlignment)};
}

}  // namespace

std::uint64_t state_bytes(ParamForm form, std::uint64_t elements) {
  const FieldSizes last = field_sizes(form, elements % kTileElements);
  return elements / kTileElements * tile_bytes(form) + last.first + 2 * last.moment;
}

StateTile state_tile(ParamForm form, std::byte* tile, std::uint64_t elements) {
  SLUICE_DCHECK(reinterpret_cast<std::uintptr_t>(tile) % kFieldAlignment == 0, "an aligned tile");
  const FieldSizes sizes = field_sizes(form, elements);
  StateTile fields;
  if (form == ParamForm::kSplit) {
    fields.lo = reinterpret_cast<std::uint16_t*>(tile);
  } else if (form != ParamForm::kFp32) {
    fields.master = reinterpret_cast<float*>(tile);
  }
  fields.m = reinterpret_cast<float*>(tile + sizes.first);
  fields.v = reinterpret_cast<float*>(tile + sizes.first + sizes.moment);
  return fields;
}

AdamwArrays tile_arrays(ParamForm form, const StateTile& tile, void* param) {
  AdamwArrays arrays{.param_form = form, .lo = tile.lo, .m = tile.m, .v = tile.v};
  if (form == ParamForm::kFp32) {
    arrays.master = static_cast<float*>(param);
  } else {
    arrays.master = tile.master;
    arrays.param16 = static_cast<std::uint16_t*>(param);
  }
  return arrays;
}

void pack_state(const StateRange& from, const AdamwArrays& to) {
  std::copy(from.m.begin(), from.m.end(), to.m);
  std::copy(from.v.begin(), from.v.end(), to.v);
  if (to.master != nullptr) std::copy(from.master.begin(), from.master.end(), to.master);
  if (to.param_form == ParamForm::kFp32) return;
  pack_parameters(to.param_form, from.master, to.param16);
  if (to.param_form != ParamForm::kSplit) return;
  for (std::size_t i = 0; i < from.master.size(); ++i) to.lo[i] = split_master(from.master[i]).lo;
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

void unpack_state(const AdamwArrays& from, const StateRange& to) {
  std::copy_n(from.m, to.m.size(), to.m.data());
  std::copy_n(from.v, to.v.size(), to.v.data());
  if (from.param_form != ParamForm::kSplit) {
    std::copy_n(from.master, to.master.size(), to.master.data());
    return;
  }
  for (std::size_t i = 0; i < to.master.size(); ++i)
    to.master[i] = join_master({.hi = from.param16[i], .lo = from.lo[i]});
}

}  // namespace sluice::offload
