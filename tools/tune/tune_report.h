// What a search found, for people and for programs.
#pragma once

#include <string>
#include <vector>

#include "tools/tune/tune_search.h"

namespace sluice::tools {

struct TuneReport {
  const std::vector<Dimension>& dimensions;
  const TuneResult& result;
  const std::vector<KeyValue>& best_keys;  // changed keys of the best
  std::vector<std::string> kept;           // keys that the configuration gives, and that stayed
};

// The table of all trials, aligned, and below it the conclusion. Rows that the plan ruled out
// because they do not fit or would be slower are included.
std::string table_of(const TuneReport& report);
// One JSON object with everything.
std::string json_of(const TuneReport& report);

// Whether the best is to be used instead of the start: measured again in turns, it was faster.
bool is_worth_it(const TuneResult& result);

// "step 812 ms, 10088 tokens/s", or why not.
std::string outcome_of(const TuneRow& row);

}  // namespace sluice::tools
