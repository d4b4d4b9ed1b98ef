// The host's resources that a configuration asks for: the IO backend, and threads.
#pragma once

#include <functional>
#include <memory>

#include "aio/io_backend.h"
#include "aio/result.h"
#include "engine/config/config.h"

namespace sluice::engine {

// The backend of all IO of a run.
Result<std::unique_ptr<aio::IoBackend>> make_run_backend(const config::Config& config);
using MakeBackend =
    std::function<Result<std::unique_ptr<aio::IoBackend>>(const config::Config& config)>;

// run.cpu_threads; if that is 0, one thread for each core that this process may use
// (usable_cores()).
int compute_threads(const config::Config& config);

// The ranks of a host share its cores. Sets `config` to this rank's part of compute_threads(),
// unless it names a number or there is only one rank. The number of threads may change last bits,
// so all ranks use the same one.
void share_compute_threads(int world, int local_world, config::Config& config);

// Threads for work whose results do not depend on their number (AdamW, casts, sums), in each of
// `local_ranks` of this host. At most this rank's share of the cores, however many threads compute.
int worker_threads(const config::Config& config, int local_ranks);

}  // namespace sluice::engine
