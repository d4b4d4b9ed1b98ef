#include "engine/runtime/run_state.h"

#include <mutex>
#include <utility>

#include "aio/check.h"
#include "engine/runtime/flat_ranges.h"
#include "engine/runtime/unit_pieces.h"
#include "engine/step/unit_binding.h"

namespace sluice::engine {

namespace {

// Visits the part of each parameter in a slice of a unit.
template <typename Visit>
Status for_each_part(const UnitLayout& layout, const offload::StateSlice& slice,
                     const Visit& visit) {
  return for_each_parameter(
      layout, slice.first_element, slice.elements(),
      [&](const ParameterSpec& parameter, std::uint64_t first, std::uint64_t offset,
          std::uint64_t count) { return visit(parameter, slice.part(offset, count, first)); });
}

}  // namespace

Status take_parameters(const UnitLayout& layout, const offload::StateSlice& slice,
                       const TakeState& take) {
  return for_each_part(layout, slice, take);
}

std::uint64_t RunState::elements() const {
  std::uint64_t elements = 0;
  for (int unit = 0; unit < model->units(); ++unit)
    elements += offload::shard_of(model->layout(unit).elements, ranks).elements;
  return elements;
}

Status RunState::amend(std::span<const int> units, const Fill& change) const {
  UnitBinding binding({params, this->units}, UnitBinding::Access::kUpdate, *model);
  this->units->invalidate();
  return optimizer->amend(binding, units, [&](int unit, const offload::StateSlice& slice) {
    return for_each_part(model->layout(unit), slice, change);
  });
}

Status RunState::set(const Fill& fill, offload::Calls calls, const Progress& progress,
                     std::int64_t after_step) const {
  const std::uint64_t total = elements();
  std::uint64_t done = 0;
  std::mutex progress_mutex;  // guards done, and serializes progress()
  UnitBinding binding({params, units}, UnitBinding::Access::kReplace, *model);
  units->invalidate();
  const auto fill_and_count = [&](int unit, const offload::StateSlice& slice) -> Status {
    SLUICE_RETURN_IF_ERROR(for_each_part(model->layout(unit), slice, fill));
    const std::lock_guard lock(progress_mutex);
    done += slice.elements();
    return progress ? progress(done, total) : Status();
  };
  return optimizer->restore(binding, fill_and_count, calls, after_step);
}

Status RunState::take(const TakeState& take, offload::Calls calls) const {
  return take_of(offload::SnapshotOf::kAll, take, calls);
}

Status RunState::take_beside_store(const TakeState& take) const {
  return take_of(offload::SnapshotOf::kBesideStore, take, offload::Calls::kInOrder);
}

Status RunState::take_of(offload::SnapshotOf what, const TakeState& take,
                         offload::Calls calls) const {
  UnitBinding binding({params, units}, UnitBinding::Access::kRead, *model);
  const auto take_slice = [&](int unit, const offload::StateSlice& slice) {
    return take_parameters(model->layout(unit), slice, take);
  };
  return optimizer->snapshot(binding, take_slice, calls, what);
}

Result<StoredRecords> RunState::freeze(const std::string& folder) const {
  UnitBinding binding({params, units}, UnitBinding::Access::kRead, *model);
  SLUICE_ASSIGN_OR_RETURN(offload::FrozenState frozen, optimizer->freeze(binding, folder));
  StoredRecords records{.store = std::move(frozen.store), .form = frozen.form};
  const UnitPieces pieces(*model);
  for (const offload::FrozenState::Part& part : frozen.parts) {
    StoredRecords::Part& stored = records.parts.emplace_back(StoredRecords::Part{
        .state = part.state, .parameters = part.parameters, .elements = part.elements});
    pieces.visit(part.unit, part.first_element, part.elements,
                 [&](const StatePiece& piece, std::uint64_t offset) {
                   stored.pieces.push_back({.piece = piece, .record_element = offset});
                 });
  }
  return records;
}

StatePieces RunState::pieces_beside_store() const {
  StatePieces all;
  const UnitPieces pieces(*model);
  for (const offload::SubGroup& group : optimizer->placement()) {
    if (group.tier == offload::Tier::kNvme) continue;
    pieces.visit(group.unit, group.first_element, group.elements,
                 [&](const StatePiece& piece, std::uint64_t /*offset*/) {
                   // Consecutive sub-groups of one parameter are one piece.
                   if (!all.empty() && all.back().parameter == piece.parameter &&
                       all.back().end() == piece.first_element)
                     all.back().elements += piece.elements;
                   else
                     all.push_back(piece);
                 });
  }
  return all;
}

}  // namespace sluice::engine
