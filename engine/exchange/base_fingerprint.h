// BaseFingerprint: which weights a model has that adapters were trained beside: they are worth
// something beside these only. It depends on their values as fp32, in the model's order, and on
// nothing else: not on a run's precision, on tiers, or on how files are cut.
//
// Threads: one at a time.
#pragma once

#include <span>
#include <string>

#include "swap/stream_hash.h"

namespace sluice::engine {

class BaseFingerprint {
 public:
  // The next values: units in forward order, their parameters in theirs, without the gaps.
  void add(std::span<const float> values) { hash_.add(std::as_bytes(values)); }
  std::string text() const;  // of all: 16 hexadecimal digits

 private:
  swap::StreamHash hash_;
};

}  // namespace sluice::engine
