// Counts calls of operator new in all threads while an object exists. Linking count_allocations.cc
// replaces the operators of the whole program.
#pragma once

namespace sluice::offload {

class CountAllocations {
 public:
  CountAllocations();
  ~CountAllocations();
  CountAllocations(const CountAllocations&) = delete;
  CountAllocations& operator=(const CountAllocations&) = delete;
  static int count();
};

}  // namespace sluice::offload
