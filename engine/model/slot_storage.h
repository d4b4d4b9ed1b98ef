// SlotStorage: one unit's parameters as views of one storage for the whole run. acquire() points
// the storage at the memory where the parameters are now; release() takes the memory away, so that
// any use of a view, from now or from an earlier acquire, throws until the next acquire. Without it
// a view kept too long (by autograd, say) would silently read the next unit's parameters.
//
// Memory:  none of its own. Threads: one at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <string>

#include "engine/model/unit_layout.h"
#include "engine/model/unit_views.h"

namespace sluice::engine {

// Until the memory is given back any access to it, by whichever tensor, throws this sentence.
void take_memory_away(c10::StorageImpl& storage, const std::string& sentence);
void give_memory_back(c10::StorageImpl& storage, at::DataPtr memory);

class SlotStorage {
 public:
  // Starts released.
  SlotStorage(const UnitLayout& layout, at::ScalarType dtype, at::Device device);

  // `first` is the slot's first byte, aligned to 256, on the device, of at least bytes() bytes; it
  // stays the caller's.
  void acquire(void* first);
  void release();
  bool acquired() const { return acquired_; }
  std::size_t bytes() const { return bytes_; }

  // The same views for the whole run.
  const UnitViews& views() const { return views_; }

 private:
  std::string name_;
  std::string released_;  // what an access says then
  at::Device device_;
  std::size_t bytes_;
  bool acquired_ = false;
  at::Storage storage_;
  UnitViews views_;
};

}  // namespace sluice::engine
