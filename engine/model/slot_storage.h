// SlotStorage: one unit's parameters as views of one storage for the whole run. acquire() points
// the storage at the current memory of the parameters, and release() takes the memory away. Any use
// of a view then throws until the next acquire, whichever acquire it is from. Otherwise a view kept
// too long (by autograd, say) would silently read the next unit's parameters.
//
// Memory:  none of its own. Threads: one at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <string>

#include "engine/model/unit_layout.h"
#include "engine/model/unit_views.h"

namespace sluice::engine {

// Until the memory is given back, any access to the storage, by any tensor, throws this sentence.
void take_memory_away(c10::StorageImpl& storage, const std::string& sentence);
void give_memory_back(c10::StorageImpl& storage, at::DataPtr memory);

class SlotStorage {
 public:
  // Starts released.
  SlotStorage(const UnitLayout& layout, at::ScalarType dtype, at::Device device);

  // `first` is the slot's first byte on the device, aligned to 256, with at least bytes() bytes.
  // The caller keeps ownership.
  void acquire(void* first);
  void release();
  bool acquired() const { return acquired_; }
  std::size_t bytes() const { return bytes_; }

  // The same views for the whole run.
  const UnitViews& views() const { return views_; }

 private:
  std::string name_;
  std::string released_;  // the message of an access after release()
  at::Device device_;
  std::size_t bytes_;
  bool acquired_ = false;
  at::Storage storage_;
  UnitViews views_;
};

}  // namespace sluice::engine
