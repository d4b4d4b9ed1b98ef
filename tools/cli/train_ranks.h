// `sluice train` on several ranks: how they meet, and what all but the first do. The first rank has
// the run's folder, reads the configuration, reports and saves; the others get their configuration
// from it and follow.
#pragma once

#include <memory>
#include <string>

#include "aio/io_watchdog.h"
#include "aio/result.h"
#include "engine/comm/communicator.h"
#include "engine/comm/rank_context.h"
#include "tools/session/train_start.h"

namespace sluice::tools {

// Of each of several ranks, before it does anything with a GPU: from now on this process sees one
// alone, that of its local rank; none, where there are fewer.
void see_own_gpu(const engine::RankContext& context);

// Of the first rank, once it knows what will be trained: hands it to the others.
// kInvalidArgument where one does not see the folder.
Status hand_out(engine::Communicator& link, const LocatedRun& run);

// Of all ranks, once each has let go of all that it had: none ends before. Launchers kill the
// others when one ends with a code that is not 0. Returns the first one's `code`.
int end_together(engine::Communicator& link, int code);

// All that another rank does, until the first one ends; its code is the first one's where a signal
// has ended that one. Signals that a terminal or a launcher sends to all ranks are the first one's
// to answer.
Result<int> follow_first_rank(const engine::RankContext& context, engine::Communicator& link,
                              aio::IoWatchdog& watchdog);

}  // namespace sluice::tools
