#include "engine/step/unit_parameters.h"

namespace sluice::engine {

CpuUnitParameters::CpuUnitParameters(const ModelLayout& model, at::ScalarType dtype,
                                     offload::ParamOffloader& params)
    : params_(params), slots_(static_cast<std::size_t>(model.units())) {
  for (int unit = 0; unit < model.units(); ++unit) {
    slots_[static_cast<std::size_t>(unit)].storage =
        std::make_unique<SlotStorage>(model.layout(unit), dtype, at::Device(at::kCPU));
  }
}

Status CpuUnitParameters::prefetch(int unit) {
  params_.prefetch(unit);
  return {};
}

Result<const UnitViews*> CpuUnitParameters::acquire(int unit) {
  Slot& slot = slots_[static_cast<std::size_t>(unit)];
  SLUICE_ASSIGN_OR_RETURN(slot.lease,
                          params_.acquire(unit, offload::ParamOffloader::Access::kRead));
  slot.storage->acquire(slot.lease.bytes().data());
  return &slot.storage->views();
}

void CpuUnitParameters::release(int unit) {
  Slot& slot = slots_[static_cast<std::size_t>(unit)];
  slot.storage->release();
  slot.lease.release();
}

}  // namespace sluice::engine
