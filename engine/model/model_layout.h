// ModelLayout: a model as data: its units in forward order, how each one's parameters lie, which
// parameters of other units it uses (tied weights), and what its passes cost. All that plans,
// allocates, moves or stores a model sees this alone; the code of its units (ModelUnit) is seen by
// who runs them. Without LibTorch.
//
// The first unit is given token ids [B, T]; each other one what the one before it made, [B, T,
// hidden]; the last makes the loss. Costs belong to a kind, so that blocks may differ.
//
// What is trained is a unit's layout(): it has state and gradients. Where adapters are trained
// beside a model (LoraRecipe), the model's own parameters are frozen(): its base, of which only the
// numbers to compute with exist. Then every unit is frozen but for adapters, and some have none.
//
// Memory:  copies share the kinds. Threads: it does not change.
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

class ModelLayout {
 public:
  struct Unit {
    std::shared_ptr<const UnitKind> kind;
    UnitLayout layout;
    UnitLayout frozen = {};  // of all units, or of none
    // Of the embedding, with the shape that they have in its slot. None may be
    // ParameterSpec::gradient_is_product: what a borrower adds to it is no product's.
    std::vector<BorrowedParameter> borrowed;
  };
  struct Sizes {
    std::int64_t hidden = 0;  // numbers of a token between two units
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
  // What passes are given first of a unit's parameters, and what borrowed() refers to: those that
  // are frozen, or else all.
  const UnitLayout& base_layout(int unit) const {
    return has_frozen_ ? frozen(unit) : layout(unit);
  }
  // The model whose parameters are frozen, as one of its own.
  ModelLayout base() const;
  const UnitKind& kind(int unit) const { return *at(unit).kind; }
  bool is_block(int unit) const { return kind(unit).role() == UnitRole::kBlock; }

  // Each kind once, in forward order; and the first unit of each.
  const std::vector<int>& first_of_kinds() const { return first_of_kinds_; }

  const std::vector<BorrowedParameter>& borrowed(int unit) const { return at(unit).borrowed; }
  // Whose they are, each once.
  const std::vector<int>& lenders(int unit) const {
    return lenders_[static_cast<std::size_t>(unit)];
  }
  // How the fp32 sums of a unit's own lie that it adds to for what it borrows, with the shapes of
  // the lender's slot: every use of a parameter has a sum of its own. Empty where it borrows
  // nothing, and in a frozen model.
  const UnitLayout& borrowed_sums(int unit) const {
    return borrowed_sums_[static_cast<std::size_t>(unit)];
  }
  // Whether a later unit uses one of its parameters.
  bool lends(int unit) const { return lends_[static_cast<std::size_t>(unit)]; }
  // Whether it is acquired beside other units: it lends, or hold() says so. Such a unit has a place
  // of its own where others take turns.
  bool is_held(int unit) const { return held_[static_cast<std::size_t>(unit)]; }
  void hold(int unit) { held_[static_cast<std::size_t>(unit)] = true; }

  std::int64_t hidden() const { return sizes_.hidden; }
  std::int64_t vocab() const { return sizes_.vocab; }
  // Of all units, without the gaps: of the model, and of what is trained.
  std::uint64_t parameter_elements() const;
  std::uint64_t trained_elements() const;
  // What goes from one unit to the next in one micro-batch.
  std::uint64_t unit_input_bytes(const PassShape& pass) const;
  // Of a text of so many positions: KvCache.
  std::uint64_t kv_cache_bytes(std::int64_t positions, std::uint64_t number_bytes) const;
  // The most that a call of any unit takes: UnitKind::peak_bytes().
  std::uint64_t peak_bytes(const PassShape& pass, const PeakOptions& options) const;

 private:
  const Unit& at(int unit) const { return units_[static_cast<std::size_t>(unit)]; }

  Sizes sizes_;
  std::vector<Unit> units_;
  bool has_frozen_ = false;
  std::vector<int> first_of_kinds_;
  std::vector<std::vector<int>> lenders_;  // by unit
  std::vector<UnitLayout> borrowed_sums_;  // by unit
  std::vector<bool> lends_;
  std::vector<bool> held_;
};

}  // namespace sluice::engine
