// UnitParameters: provides a unit's parameters on the device that computes, whichever tier stores
// them.
//
//   parameters.prefetch(u + 1);
//   SLUICE_ASSIGN_OR_RETURN(const UnitViews* views, parameters.acquire(u));
//   ... passes of u, enqueued on the compute stream ...
//   parameters.release(u);
//
// One unit is acquired at a time, plus the embedding if it lends that unit parameters.
//
// Threads: the training thread.
// Errors:  those of ParamOffloader, after the unit's name.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "aio/result.h"
#include "engine/budget/base_form.h"
#include "engine/budget/gathering.h"
#include "engine/comm/communicator.h"
#include "engine/model/model_layout.h"
#include "engine/model/slot_storage.h"
#include "offload/params/param_offloader.h"
#include "offload/step_program.h"
#include "offload/unit_residency.h"

namespace sluice::engine {

class UnitParameters {
 public:
  virtual ~UnitParameters() = default;

  // Starts to fetch a unit that will be acquired soon; its parameters must be up to date. With one
  // rank it never waits.
  virtual Status prefetch(int unit) = 0;
  // Whether prefetch() gathers shards, so that all ranks must call it in the same order.
  virtual bool prefetch_gathers() const { return false; }
  // Returns the same views for the whole run; they throw if used after release().
  virtual Result<const UnitViews*> acquire(int unit) = 0;
  // Work enqueued before may still use the views; later work must not.
  virtual void release(int unit) = 0;
  // Whether a pass in this direction finds the unit where the previous pass, in the other
  // direction, left it. The host is then not asked again.
  virtual bool keeps(int /*unit*/, offload::PassDirection /*direction*/) const { return false; }
  // The address of the unit's first parameter if its shard lives on the device, fixed for the whole
  // run; else null. The optimizer updates the part with state on the device in place there.
  virtual void* shard_place(int /*unit*/) const { return nullptr; }
  // Copies the shard from the device once all enqueued work is done; for inspection.
  virtual Status read_shard(int /*unit*/, std::span<std::byte> /*to*/) const {
    return Error(ErrorCode::kUnsupported, "no unit lives on this device");
  }
  // Writes bytes of a unit that lives on the device and has no copy on a host. This is for frozen
  // parameters, which are set once.
  virtual Status fill_resident(int /*unit*/, std::uint64_t /*offset_bytes*/,
                               std::span<const std::byte> /*from*/) {
    return Error(ErrorCode::kUnsupported, "no unit lives on this device");
  }
  // Hint: the approximate order in which coming passes ask the host for units. Only frozen
  // parameters need it here, because they have a separate ParamOffloader.
  virtual void expect_base(std::span<const int> /*order*/) {}
  // Must be called by all ranks after a step is applied: all units' parameters have changed.
  virtual void invalidate() {}
  virtual std::uint64_t copied_bytes() const { return 0; }
};

// The units that a program has fetched for its next computing operation: the unit that is computed,
// and its lenders.
class FetchedUnits {
 public:
  // `parameters` must outlive it.
  explicit FetchedUnits(UnitParameters& parameters) : parameters_(parameters) {}

  void acquire(int unit);
  // The views of `unit`, followed by those of what it borrows; all of these units must be acquired.
  UnitViews views(const ModelLayout& model, int unit) const;
  // Releases all of them.
  void release();
  // The same after an error, when the device may fail again.
  void abandon() noexcept;

 private:
  struct Fetched {
    int unit = 0;
    const UnitViews* views = nullptr;
  };
  const UnitViews& of(int unit) const;

  UnitParameters& parameters_;
  std::vector<Fetched> fetched_;
};

offload::ProgramUnits program_units(const ModelLayout& model);  // `model` must outlive the result

// Calls ParamOffloader::expect() for the units of `order` that have a place there.
void expect_on_host(offload::ParamOffloader& params, std::span<const int> order);

// Which units this rank has a part of its host's copy of (Gathering), and where the part is. All
// ranks have the same ones, since all gather and update the same units.
class UnitCopies {
 public:
  UnitCopies() = default;
  // Resident units are not gathered.
  UnitCopies(const ModelLayout& model, const BaseForm& form, const Gathering& gathering,
             const offload::UnitResidency& residency = {});

  std::uint64_t bytes() const { return bytes_; }  // of all parts, at these offsets
  std::uint64_t offset(int unit) const { return at(unit).offset; }
  std::uint64_t part_bytes(int unit) const { return at(unit).bytes; }

  bool may_keep(int unit) const { return !units_.empty() && at(unit).bytes > 0; }
  bool has(int unit) const { return !units_.empty() && at(unit).valid; }
  void set(int unit) { units_[static_cast<std::size_t>(unit)].valid = true; }
  void clear() {
    for (Unit& unit : units_) unit.valid = false;
  }

 private:
  struct Unit {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    bool valid = false;
  };
  const Unit& at(int unit) const { return units_[static_cast<std::size_t>(unit)]; }

  std::vector<Unit> units_;  // empty: no copies are kept
  std::uint64_t bytes_ = 0;
};

// On the CPU, parameters are used in place in the offloader's memory, without a copy. A base in 8
// bits is the exception: acquire() dequantizes it with all of LibTorch's threads.
// With several ranks each has shards, which acquire() gathers: it is then collective, in the same
// order on all ranks.
// Gathering says in which form they are gathered, and what the host keeps.
//
// Memory:  UnpackedBuffers for an encoded base, GatheredBuffers with several ranks, a buffer of
//          pieces_buffer_bytes(), and UnitCopies; else none.
class CpuUnitParameters final : public UnitParameters {
 public:
  // All but `form` must outlive it. `form`: encoded only for a base; is_sharded() unless each rank
  // has whole units. `link` connects its ranks.
  CpuUnitParameters(const ModelLayout& model, const BaseForm& form, offload::ParamOffloader& params,
                    Communicator& link = single_process(), const Gathering& gathering = {});

  Status prefetch(int unit) override;
  Result<const UnitViews*> acquire(int unit) override;
  void release(int unit) override;
  void expect_base(std::span<const int> order) override { expect_on_host(params_, order); }
  void invalidate() override { copies_.clear(); }

 private:
  struct Slot {
    std::unique_ptr<SlotStorage> storage;
    offload::ParamOffloader::Lease lease;
  };

  struct Buffers {
    at::Tensor lender;
    at::Tensor other;
  };

  std::byte* buffer_of(int unit, const Buffers& buffers) const;
  Result<std::span<std::byte>> gathered(int unit, std::span<std::byte> shard);
  Result<std::span<std::byte>> gathered_in_int8(int unit, std::span<const std::byte> shard);
  template <typename PutPiece>
  Status gather(int unit, std::span<std::byte> all, const PutPiece& put_piece);
  void* made_of(int unit, std::span<const std::byte> bytes);

  const ModelLayout& model_;
  const BaseForm form_;
  const Gathering gathering_;
  offload::ParamOffloader& params_;
  Communicator& link_;
  std::vector<Slot> slots_;  // by unit
  Buffers gathered_;         // gathered shards: GatheredBuffers
  Buffers unpacked_;         // an encoded base, expanded: UnpackedBuffers
  at::Tensor pieces_;        // a unit in 8 bits, as it is sent
  UnitCopies copies_;
  at::Tensor parts_;  // of the host's copies
};

}  // namespace sluice::engine
