// What differs between two configurations.
//
// Threads: any; a pure function.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/config/config.h"

namespace sluice::config {

struct KeyChange {
  std::string path;  // "optimizer.groups[1]": of an entry
  std::string was;   // as JSON, shortened
  std::string is;
  bool read_by_both = true;  // it has an effect in either configuration
};

// Every key whose value differs, in the order of the key table; a key that has no effect in a
// configuration is still compared, with its value there.
std::vector<KeyChange> changed_keys(const Config& was, const Config& is);

// Whether a key says what is computed, from which data: the optimizer, batches, data, precision.
// The others say where state lies, how long a run is, and what of it is printed or kept.
bool decides_results(std::string_view path);

// "optimizer.params.lr was 0.003 and is 0.001"
std::string to_text(const KeyChange& change);

}  // namespace sluice::config
