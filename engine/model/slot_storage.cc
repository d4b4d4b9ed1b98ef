#include "engine/model/slot_storage.h"

namespace sluice::engine {

SlotStorage::SlotStorage(const UnitLayout& layout, at::ScalarType dtype, at::Device device)
    : device_(device),
      bytes_(layout.slot_elements * c10::elementSize(dtype)),
      storage_(c10::Storage::use_byte_size_t(), bytes_, at::DataPtr(nullptr, device),
               /*allocator=*/nullptr, /*resizable=*/false),
      views_(layout, storage_, dtype) {}

void SlotStorage::acquire(void* first) {
  TORCH_CHECK(!acquired_, "a unit's slot is acquired twice: release it first");
  TORCH_CHECK(first != nullptr, "a unit's slot has no memory");
  storage_.set_data_ptr_noswap(at::DataPtr(first, device_));
  acquired_ = true;
}

void SlotStorage::release() {
  // Its length stays, so that a view of it is a tensor whose data is missing, which throws.
  storage_.set_data_ptr_noswap(at::DataPtr(nullptr, device_));
  acquired_ = false;
}

}  // namespace sluice::engine
