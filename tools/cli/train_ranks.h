// What `sluice train` does on all ranks but the first. The first rank owns the run's folder, reads
// the configuration, reports and saves. The others get their configuration from it and follow.
#pragma once

#include "aio/io_watchdog.h"
#include "aio/result.h"
#include "engine/comm/communicator.h"
#include "engine/comm/rank_context.h"
#include "tools/session/train_start.h"

namespace sluice::tools {

// The first rank sends the located run to the others. kInvalidArgument if a rank does not see the
// run's folder.
Status hand_out(engine::Communicator& link, const LocatedRun& run);

// Called by all ranks after they have freed their resources, so that no rank exits before the
// others. Launchers kill the other ranks when one exits with a code that is not 0. Returns the
// first rank's `code`.
int end_together(engine::Communicator& link, int code);

// Everything that a rank other than the first does, until the first one ends. If a signal ended the
// first rank, returns its code. Only the first rank handles signals that a terminal or a launcher
// sends to all ranks.
Result<int> follow_first_rank(const engine::RankContext& context, engine::Communicator& link,
                              aio::IoWatchdog& watchdog);

}  // namespace sluice::tools
