#include "engine/model/slot_storage.h"

#include <algorithm>
#include <utility>

namespace sluice::engine {
namespace {

// LibTorch can make a storage throw at every access, but cannot undo it: the flag is private. A
// null pointer would not do, because most operators do not check it. An explicit instantiation may
// name a private member, and makes it accessible here.
bool& throws(c10::StorageImpl& storage);

template <bool c10::StorageImpl::*flag>
struct FlagOf {
  friend bool& throws(c10::StorageImpl& storage) { return storage.*flag; }
};
template struct FlagOf<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

}  // namespace

void take_memory_away(c10::StorageImpl& storage, const std::string& sentence) {
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(sentence);
}

void give_memory_back(c10::StorageImpl& storage, at::DataPtr memory) {
  throws(storage) = false;
  storage.set_data_ptr_noswap(std::move(memory));
}

namespace {

// Lists some parameters, because the storage holds all of them and the accessed one is unknown.
std::string names_of(const UnitLayout& layout) {
  constexpr std::size_t kMost = 4;
  std::string names;
  for (std::size_t i = 0; i < std::min(kMost, layout.parameters.size()); ++i)
    names += (i == 0 ? "" : ", ") + layout.parameters[i].name;
  return layout.parameters.size() > kMost ? names + ", ..." : names;
}

}  // namespace

SlotStorage::SlotStorage(const UnitLayout& layout, at::ScalarType dtype, at::Device device)
    : name_(layout.name),
      released_("a parameter of unit " + name_ + " is used while the unit is released (it has " +
                names_of(layout) +
                "). Between passes of the module, read parameters within \"with "
                "engine.gathered(parameter):\" or zero.GatheredParameters of sluice.deepspeed, or "
                "from state_dict()"),
      device_(device),
      bytes_(layout.slot_elements * c10::elementSize(dtype)),
      storage_(c10::Storage::use_byte_size_t(), bytes_, at::DataPtr(nullptr, device),
               /*allocator=*/nullptr, /*resizable=*/false),
      views_(layout, storage_, dtype) {
  release();
}

void SlotStorage::acquire(void* first) {
  TORCH_CHECK(!acquired_, "unit ", name_, " is acquired twice: release it first");
  TORCH_CHECK(first != nullptr, "unit ", name_, " is given no memory");
  give_memory_back(*storage_.unsafeGetStorageImpl(), at::DataPtr(first, device_));
  acquired_ = true;
}

void SlotStorage::release() {
  storage_.set_data_ptr_noswap(at::DataPtr(nullptr, device_));
  take_memory_away(*storage_.unsafeGetStorageImpl(), released_);
  acquired_ = false;
}

}  // namespace sluice::engine
