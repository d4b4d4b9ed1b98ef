// The user's run file merged with the result of a search: the best.json of `sluice tune`.
#pragma once

#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/config/resolve.h"
#include "tools/tune/search_space.h"

namespace sluice::tools {

// `sources` with `changes` as the last overrides.
config::Sources with_changes(const config::Sources& sources, const std::vector<KeyValue>& changes);

// A run file that resolves to the same configuration as `sources` with `changes`. It is the user's
// run file, with its keys in their order, and with overrides and changes merged in. If that is
// impossible, because a DeepSpeed file was laid over it, it is the whole resolved configuration.
// Comments do not survive: JSON has none. Errors: those of resolve().
Result<std::string> merged_config(const config::Sources& sources,
                                  const std::vector<KeyValue>& changes);

}  // namespace sluice::tools
