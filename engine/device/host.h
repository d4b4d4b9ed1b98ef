// What a run has of the host, as its configuration asks: the backend of its IO, and threads.
#pragma once

#include <memory>

#include "aio/io_backend.h"
#include "aio/result.h"
#include "engine/config/config.h"

namespace sluice::engine {

// The backend that the configuration asks for, by which a run's bytes move.
Result<std::unique_ptr<aio::IoBackend>> make_run_backend(const config::Config& config);

// run.cpu_threads; where that is 0, one for each core that this process may have (usable_cores()).
int compute_threads(const config::Config& config);

// The ranks of a host share its cores: gives `config` this rank's part of compute_threads(), unless
// it names a number or there is one rank in all. The number of threads may change last bits, so all
// ranks have the same one.
void share_compute_threads(int world, int local_world, config::Config& config);

// Likewise for what changes no bit (AdamW, casts, sums) in each of `local_ranks` of this host: no
// more than its share of the cores, whatever the run computes with.
int worker_threads(const config::Config& config, int local_ranks);

}  // namespace sluice::engine
