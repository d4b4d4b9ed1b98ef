// The user's run file with what a search found: the best.json of `sluice tune`.
#pragma once

#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/config/resolve.h"
#include "tools/tune/search_space.h"

namespace sluice::tools {

// As `sources`, with `changes` as the last overrides.
config::Sources with_changes(const config::Sources& sources, const std::vector<KeyValue>& changes);

// A run file that resolves to the same configuration as `sources` with `changes`: the user's own,
// its keys in their order, with overrides and changes in it. Where it cannot be expressed that way
// (a DeepSpeed file was laid over it), the resolved configuration as a whole. Comments do not
// survive: JSON has none. Errors: those of resolve().
Result<std::string> merged_config(const config::Sources& sources,
                                  const std::vector<KeyValue>& changes);

}  // namespace sluice::tools
