// UnitParameters: a unit's parameters on the device that computes, from wherever they live.
//
//   parameters.prefetch(u + 1);
//   SLUICE_ASSIGN_OR_RETURN(const UnitViews* views, parameters.acquire(u));
//   ... passes of u, enqueued on the compute stream ...
//   parameters.release(u);
//
// One unit is acquired at a time, plus the embedding where it lends that unit parameters.
//
// Threads: the one that trains.
// Errors:  as from ParamOffloader, after the unit's name.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "aio/result.h"
#include "engine/budget/base_form.h"
#include "engine/model/model_layout.h"
#include "engine/model/slot_storage.h"
#include "engine/step/rank_reduction.h"
#include "offload/params/param_offloader.h"
#include "offload/step_program.h"

namespace sluice::engine {

class UnitParameters {
 public:
  virtual ~UnitParameters() = default;

  // The unit will be acquired soon; its parameters are new. Never waits, where there is one rank.
  virtual Status prefetch(int unit) = 0;
  // Whether prefetch() is for all ranks to call, in one order: it gathers.
  virtual bool prefetch_gathers() const { return false; }
  // The same views for the whole run; they throw when used after release().
  virtual Result<const UnitViews*> acquire(int unit) = 0;
  // What was enqueued before may still use them; nothing that comes later may.
  virtual void release(int unit) = 0;
  // Whether a pass in this direction finds the unit where the one before it, in the other, left it,
  // so that the host is not asked again.
  virtual bool keeps(int /*unit*/, offload::PassDirection /*direction*/) const { return false; }
  // Of a unit whose shard lives on the device: where its first parameter is, for the whole run;
  // else null. The optimizer updates in place there what has its state on the device.
  virtual void* shard_place(int /*unit*/) const { return nullptr; }
  // Copies it from there once everything enqueued is done; for inspection.
  virtual Status read_shard(int /*unit*/, std::span<std::byte> /*to*/) const {
    return Error(ErrorCode::kUnsupported, "no unit lives on this device");
  }
  // Copies bytes of a unit that lives on the device to there, where no host has them: of frozen
  // parameters, which are set once.
  virtual Status fill_resident(int /*unit*/, std::uint64_t /*offset_bytes*/,
                               std::span<const std::byte> /*from*/) {
    return Error(ErrorCode::kUnsupported, "no unit lives on this device");
  }
  // The order in which coming passes ask the host for units, roughly. Only that of frozen
  // parameters is said here: they have a host of their own.
  virtual void expect_base(std::span<const int> /*order*/) {}
  // A step was applied: from now on all units' parameters are new ones.
  virtual void changed() {}
  virtual std::uint64_t copied_bytes() const { return 0; }
};

// The units that a program has fetched for its next operation that computes: the one that is
// computed, and those that lend it parameters.
class FetchedUnits {
 public:
  // `parameters` must outlive it.
  explicit FetchedUnits(UnitParameters& parameters) : parameters_(parameters) {}

  void acquire(int unit);
  // Of `unit`, followed by those of what it borrows; all of these units were acquired.
  UnitViews views(const ModelLayout& model, int unit) const;
  // All of them.
  void release();
  // Likewise after an error, which may have left a device that fails again.
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

offload::ProgramUnits program_units(const ModelLayout& model);  // which must outlive them

// ParamOffloader::expect() of those units that have a place there.
void expect_on_host(offload::ParamOffloader& params, std::span<const int> order);

// On the CPU the parameters are used where the offloader has them: nothing is copied, unless they
// are there in 8 bits. Then they are made into what is computed with each time they are acquired,
// by all of LibTorch's threads.
//
// Memory:  UnpackedPlaces of a base in 8 bits, GatheredPlaces with several ranks; else none.
// With several ranks each has shards, which are gathered when a unit is acquired: acquire() is then
// for all ranks to call, in one order.
class CpuUnitParameters final : public UnitParameters {
 public:
  // All but `form` must outlive it. `form`: is_int8 only for a base; its ranks are those of
  // `ranks`, which is alone where each has all of a unit.
  CpuUnitParameters(const ModelLayout& model, const BaseForm& form, offload::ParamOffloader& params,
                    const RankLink& ranks = {});

  Status prefetch(int unit) override;
  Result<const UnitViews*> acquire(int unit) override;
  void release(int unit) override;
  void expect_base(std::span<const int> order) override { expect_on_host(params_, order); }

 private:
  struct Slot {
    std::unique_ptr<SlotStorage> storage;
    offload::ParamOffloader::Lease lease;
  };

  struct Places {
    at::Tensor lender;
    at::Tensor other;
  };

  std::byte* place_of(int unit, const Places& places) const;
  Result<std::span<std::byte>> gathered(int unit, std::span<const std::byte> shard);
  void* made_of(int unit, std::span<const std::byte> bytes);

  const ModelLayout& model_;
  const BaseForm form_;
  offload::ParamOffloader& params_;
  const RankLink ranks_;
  std::vector<Slot> slots_;  // by unit
  Places gathered_;          // of shards: GatheredPlaces
  Places unpacked_;          // of a base in 8 bits: UnpackedPlaces
};

}  // namespace sluice::engine
