#include "engine/run/gathered_state.h"

#include <algorithm>

namespace sluice::engine {

using offload::StateRange;

GatheredState::GatheredState(const ModelLayout& model, const RankLink& ranks, const Visit& visit)
    : model_(model), ranks_(ranks), visit_(visit) {
  mine_.assign(kFields * piece(), 0);
}

Status GatheredState::add(const StateRange& range) {
  while (unit_ < range.unit) SLUICE_RETURN_IF_ERROR(gather_unit());
  const std::uint64_t begin =
      offload::shard_of(model_.layout(unit_).elements, ranks_.part).first_element;
  const std::span<const float> fields[kFields] = {range.master, range.m, range.v};
  for (std::size_t field = 0; field < kFields; ++field)
    std::copy(
        fields[field].begin(), fields[field].end(),
        mine_.begin() + static_cast<std::ptrdiff_t>(field * piece() + range.first_element - begin));
  return {};
}

Status GatheredState::finish() {
  while (unit_ < model_.units()) SLUICE_RETURN_IF_ERROR(gather_unit());
  return {};
}

Status GatheredState::gather_unit() {
  const std::uint64_t elements = model_.layout(unit_).elements;
  const auto world = static_cast<std::size_t>(ranks_.part.world);
  const std::uint64_t each = piece();
  all_.resize(mine_.size() * world);
  SLUICE_RETURN_IF_ERROR(ranks_.link->all_gather(std::as_bytes(std::span(mine_)),
                                                 std::as_writable_bytes(std::span(all_))));
  Status visited;
  if (ranks_.part.rank == 0 && elements > 0) {
    const std::uint64_t gathered = each * world;
    whole_.resize(kFields * gathered);
    for (std::size_t rank = 0; rank < world; ++rank)
      for (std::size_t field = 0; field < kFields; ++field)
        std::copy_n(all_.begin() + static_cast<std::ptrdiff_t>((rank * kFields + field) * each),
                    each,
                    whole_.begin() + static_cast<std::ptrdiff_t>(field * gathered + rank * each));
    const std::span<float> whole(whole_);
    visited = visit_({.unit = unit_,
                      .first_element = 0,
                      .master = whole.first(elements),
                      .m = whole.subspan(gathered, elements),
                      .v = whole.subspan(2 * gathered, elements)});
  }
  ++unit_;
  if (unit_ < model_.units()) mine_.assign(kFields * piece(), 0);
  std::vector<int> failed(world);
  SLUICE_RETURN_IF_ERROR(ranks_.link->all_gather_values(visited.ok() ? 0 : 1, std::span(failed)));
  SLUICE_RETURN_IF_ERROR(visited);
  if (failed.front() != 0)
    return Error(ErrorCode::kCancelled, "rank 0 could not take the state of all ranks");
  return {};
}

}  // namespace sluice::engine
