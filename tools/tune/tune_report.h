// The result of a search, for people and for programs, and the run file with it: the best.json of
// `sluice tune`.
#pragma once

#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/config/resolve.h"
#include "tools/tune/search_space.h"
#include "tools/tune/tune_search.h"

namespace sluice::tools {

struct TuneReport {
  const std::vector<Dimension>& dimensions;
  const TuneResult& result;
  const std::vector<KeyValue>& best_keys;  // the keys that the best point changes
  std::vector<std::string> kept;           // kept as the configuration sets them
};

// The aligned table of all trials, and the conclusion below it. Includes points that the plan ruled
// out because they do not fit or would be slower.
std::string table_of(const TuneReport& report);
// One JSON object with all results.
std::string json_of(const TuneReport& report);

// Whether to use the best point instead of the start: it was faster when both were measured again
// alternately.
bool is_worth_it(const TuneResult& result);

// "step 812 ms, 10088 tokens/s", or why there is no measurement.
std::string outcome_of(const TuneRow& row);

// `sources` with `changes` as the last overrides.
config::Sources with_changes(const config::Sources& sources, const std::vector<KeyValue>& changes);

// A run file that resolves to the same configuration as `sources` with `changes`. It is the user's
// run file, with its keys in their order, and with overrides and changes merged in. If that is
// impossible, because a DeepSpeed file was laid over it, it is the whole resolved configuration.
// Comments do not survive: JSON has none. Errors: those of resolve().
Result<std::string> merged_config(const config::Sources& sources,
                                  const std::vector<KeyValue>& changes);

}  // namespace sluice::tools
