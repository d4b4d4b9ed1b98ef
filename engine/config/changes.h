// The differences between two configurations.
//
// Threads: any; a pure function.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/config/config.h"

namespace sluice::config {

struct KeyChange {
  std::string path;  // for an entry of a list: "optimizer.groups[1]"
  std::string was;   // as JSON, shortened
  std::string is;
  bool read_by_both = true;  // has an effect in both configurations
};

// Every key whose value differs, in the order of the key table. A key that has an effect in only
// one of the two configurations is still compared, with its value in the other.
std::vector<KeyChange> changed_keys(const Config& was, const Config& is);

// Whether a key affects results: the optimizer, batches, data, precision. The others decide where
// state is stored, how long a run is, and what it logs or keeps.
bool decides_results(std::string_view path);

// For example "optimizer.params.lr was 0.003 and is 0.001".
std::string to_text(const KeyChange& change);

}  // namespace sluice::config
