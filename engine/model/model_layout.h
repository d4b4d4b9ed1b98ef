// ModelLayout: a model as data: its units in forward order, the layout of their parameters,
// borrowed parameters of other units (tied weights), and the costs of passes. Code that plans,
// allocates, moves or stores a model sees only this. Only code that runs the units sees theirs
// (ModelUnit). Without LibTorch.
//
// The first unit gets token ids [B, T]. Each other unit gets the output of the one before it, [B,
// T, hidden]; the last computes the loss. Costs belong to a kind, so that blocks may differ.
//
// A unit's layout() has its trained parameters, with state and gradients. If adapters are trained
// (LoraRecipe), the model's own parameters are frozen(): the base, which exists only in the form
// used for computing. Then every unit is frozen except for its adapters, and some units have none.
//
// Memory:  copies share the kinds. Threads: immutable, but for keep_acquired().
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/model/unit_costs.h"
#include "engine/model/unit_layout.h"

namespace sluice::engine {

// A parameter of another unit.
struct BorrowedParameter {
  int unit = 0;
  int parameter = 0;  // in its UnitLayout::parameters
};

// What an ExpertLoad (expert_load.h) is for.
struct ExpertLoadShape {
  std::int64_t micro_batches = 1;  // of a step
  std::int64_t of_a_wave = 1;
  bool balances = false;  // with the balance loss
};

class ModelLayout {
 public:
  struct Unit {
    std::shared_ptr<const UnitKind> kind;
    UnitLayout layout;
    UnitLayout frozen = {};  // in all units, or in none
    // Parameters of the embedding, with the shapes of its slot. None may be
    // ParameterSpec::gradient_is_product, because a borrower's contribution is not a single
    // product.
    std::vector<BorrowedParameter> borrowed;
  };
  struct Sizes {
    std::int64_t hidden = 0;  // per token, between two units
    std::int64_t vocab = 0;   // token ids are below it
  };
  // An embedding, blocks and a head, in this order.
  ModelLayout(const Sizes& sizes, std::vector<Unit> units);

  int units() const { return static_cast<int>(units_.size()); }
  int head() const { return units() - 1; }
  int blocks() const { return units() - 2; }
  const UnitLayout& layout(int unit) const { return at(unit).layout; }
  bool has_frozen() const { return has_frozen_; }
  const UnitLayout& frozen(int unit) const { return at(unit).frozen; }
  // The parameters of a unit that passes get first, and to which borrowed() refers: the frozen
  // ones, or else all.
  const UnitLayout& base_layout(int unit) const {
    return has_frozen_ ? frozen(unit) : layout(unit);
  }
  // The frozen model as a layout of its own.
  ModelLayout base() const;
  const UnitKind& kind(int unit) const { return *at(unit).kind; }
  bool is_block(int unit) const { return kind(unit).role() == UnitRole::kBlock; }

  // Each kind once, in forward order, as the first unit of that kind.
  const std::vector<int>& first_of_kinds() const { return first_of_kinds_; }

  const std::vector<BorrowedParameter>& borrowed(int unit) const { return at(unit).borrowed; }
  // The units that lend to this one, each once.
  const std::vector<int>& lenders(int unit) const {
    return lenders_[static_cast<std::size_t>(unit)];
  }
  // The layout of a unit's own fp32 sums for what it borrows, with the shapes of the lender's slot:
  // every use of a parameter has its own sum. Empty if the unit borrows nothing, and in a frozen
  // model.
  const UnitLayout& borrowed_sums(int unit) const {
    return borrowed_sums_[static_cast<std::size_t>(unit)];
  }
  // Whether a later unit uses one of its parameters.
  bool has_borrowers(int unit) const { return has_borrowers_[static_cast<std::size_t>(unit)]; }
  // Whether it is acquired together with other units, because others borrow from it or
  // keep_acquired() was called. Such a unit has its own place where other units share slots.
  bool stays_acquired(int unit) const { return stays_acquired_[static_cast<std::size_t>(unit)]; }
  void keep_acquired(int unit) { stays_acquired_[static_cast<std::size_t>(unit)] = true; }

  std::int64_t hidden() const { return sizes_.hidden; }
  std::int64_t vocab() const { return sizes_.vocab; }
  // Over all units, without the gaps: of the model, and of the trained parameters.
  std::uint64_t parameter_elements() const;
  std::uint64_t trained_elements() const;
  // The model's elements that compute a token: all, but for experts that are not chosen for it.
  std::uint64_t active_elements() const;
  // The bytes that one micro-batch passes from unit to unit.
  std::uint64_t unit_input_bytes(const PassShape& pass) const;
  // The bytes of a KvCache for this many positions.
  std::uint64_t kv_cache_bytes(std::int64_t positions, std::uint64_t number_bytes) const;
  // At most, on the compute device.
  std::uint64_t expert_load_bytes(const ExpertLoadShape& load) const;
  // The maximum over all calls of all units: UnitKind::peak_bytes().
  std::uint64_t peak_bytes(const PassShape& pass, const PeakOptions& options) const;

 private:
  const Unit& at(int unit) const { return units_[static_cast<std::size_t>(unit)]; }

  Sizes sizes_;
  std::vector<Unit> units_;
  bool has_frozen_ = false;
  std::vector<int> first_of_kinds_;
  std::vector<std::vector<int>> lenders_;  // by unit
  std::vector<UnitLayout> borrowed_sums_;  // by unit
  std::vector<bool> has_borrowers_;
  std::vector<bool> stays_acquired_;
};

}  // namespace sluice::engine
