#include "engine/model/model_layout.h"

#include <algorithm>
#include <utility>

#include "aio/check.h"

namespace sluice::engine {
namespace {

UnitRole role_at(std::size_t unit, std::size_t units) {
  if (unit == 0) return UnitRole::kEmbedding;
  return unit + 1 == units ? UnitRole::kHead : UnitRole::kBlock;
}

}  // namespace

ModelLayout::ModelLayout(const Sizes& sizes, std::vector<Unit> units)
    : sizes_(sizes),
      units_(std::move(units)),
      lenders_(units_.size()),
      borrowed_sums_(units_.size()),
      has_borrowers_(units_.size()),
      stays_acquired_(units_.size()) {
  SLUICE_CHECK(units_.size() > 2, "a model has an embedding, blocks and a head");
  has_frozen_ = units_.front().frozen.elements > 0;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const Unit& unit = units_[i];
    SLUICE_CHECK(unit.kind->role() == role_at(i, units_.size()),
                 "an embedding, blocks and a head, in this order");
    SLUICE_CHECK((unit.frozen.elements > 0) == has_frozen_,
                 "a model is frozen as a whole, or not at all");
    for (const BorrowedParameter& it : unit.borrowed) {
      // Slots and caches have room for one unit of each role at a time.
      SLUICE_CHECK(it.unit == 0 && i > 0, "the embedding lends");
      const std::vector<ParameterSpec>& of_lender = base_layout(it.unit).parameters;
      SLUICE_CHECK(it.parameter >= 0 && static_cast<std::size_t>(it.parameter) < of_lender.size(),
                   "a parameter that the lender has");
      const ParameterSpec& lent = of_lender[static_cast<std::size_t>(it.parameter)];
      SLUICE_CHECK(!lent.gradient_is_product, "the gradient of a parameter that is lent is a sum");
      if (!has_frozen_)
        borrowed_sums_[i].add({.name = lent.name, .shape = lent.slot_shape(), .group = lent.group});
      std::vector<int>& lenders = lenders_[i];
      if (std::find(lenders.begin(), lenders.end(), it.unit) == lenders.end())
        lenders.push_back(it.unit);
      has_borrowers_[static_cast<std::size_t>(it.unit)] = true;
      keep_acquired(it.unit);
    }
    const auto known = std::find_if(first_of_kinds_.begin(), first_of_kinds_.end(),
                                    [&](int first) { return at(first).kind == unit.kind; });
    if (known != first_of_kinds_.end()) continue;
    for (const int first : first_of_kinds_)
      SLUICE_CHECK(kind(first).name() != unit.kind->name(), "each kind has a name of its own");
    first_of_kinds_.push_back(static_cast<int>(i));
  }
}

ModelLayout ModelLayout::base() const {
  SLUICE_CHECK(has_frozen_, "a model whose parameters are frozen");
  std::vector<Unit> units = units_;
  for (Unit& unit : units) unit.layout = std::exchange(unit.frozen, {});
  return {sizes_, std::move(units)};
}

std::uint64_t ModelLayout::parameter_elements() const {
  std::uint64_t elements = 0;
  for (int unit = 0; unit < this->units(); ++unit)
    elements += base_layout(unit).parameter_elements();
  return elements;
}

std::uint64_t ModelLayout::trained_elements() const {
  std::uint64_t elements = 0;
  for (const Unit& unit : units_) elements += unit.layout.parameter_elements();
  return elements;
}

std::uint64_t ModelLayout::active_elements() const {
  std::uint64_t elements = parameter_elements();
  for (const Unit& unit : units_) elements -= unit.kind->idle_elements();
  return elements;
}

std::uint64_t ModelLayout::unit_input_bytes(const PassShape& pass) const {
  return static_cast<std::uint64_t>(pass.rows() * sizes_.hidden * pass.number_bytes);
}

std::uint64_t ModelLayout::kv_cache_bytes(std::int64_t positions,
                                          std::uint64_t number_bytes) const {
  constexpr std::uint64_t kFp32Bytes = 4;
  std::uint64_t numbers = 0;
  std::uint64_t states = 0;
  for (const Unit& unit : units_) {
    const KvShape kv = unit.kind->kv_shape();
    const StateShape state = unit.kind->state_shape();
    numbers += static_cast<std::uint64_t>(2 * positions * kv.heads * kv.head_dim +
                                          state.inputs * state.input_width);
    states += static_cast<std::uint64_t>(state.heads * state.key_dim * state.value_dim);
  }
  return numbers * number_bytes + states * kFp32Bytes;
}

std::uint64_t ModelLayout::expert_load_bytes(const ExpertLoadShape& load) const {
  constexpr std::int64_t kNumberBytes = 8;
  constexpr std::int64_t kScalarBytes = 512;  // LibTorch's least allocation on a GPU
  constexpr std::int64_t kOfMicroBatch = 3;   // counts, probabilities and their gradient
  std::int64_t numbers = 0;                   // of all layers
  std::int64_t experts = 0;
  for (const Unit& unit : units_) {
    experts = std::max(experts, unit.kind->experts());
    numbers += unit.kind->experts();
  }
  if (experts == 0) return 0;
  std::int64_t bytes = numbers * kNumberBytes;
  if (load.balances)
    bytes +=
        load.of_a_wave * kOfMicroBatch * experts * kNumberBytes + load.micro_batches * kScalarBytes;
  return static_cast<std::uint64_t>(bytes);
}

std::uint64_t ModelLayout::peak_bytes(const PassShape& pass, const PeakOptions& options) const {
  std::uint64_t most = 0;
  for (const int first : first_of_kinds_)
    most = std::max(most, kind(first).peak_bytes(pass, options));
  return most;
}

}  // namespace sluice::engine
