// make_mpi_communicator: host memory between ranks that mpirun or Slurm started, by the MPI that is
// installed there: for ranks without GPUs, and networks that MPI knows better than TCP.
//
// Needs:   the plug-in sluice_mpi (mpi_plugin.h), which is built where mpi.h is found.
// Threads: as communicator.h. abort() from another thread than the one in a collective is against
//          MPI's rules, and ends the process all the same.
// Errors:  kUnsupported: no plug-in, or none that can be loaded (with the loader's words). A rank
//          that dies makes mpirun end all of them, without an error here; a rank that fails calls
//          abort(), which is MPI_Abort: it says the reason and ends all ranks, this one included.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "aio/result.h"
#include "engine/comm/communicator.h"

namespace sluice::engine {

struct MpiOptions {
  std::string plugin = "libsluice_mpi.so";  // a path, or a name that the loader finds
  std::chrono::milliseconds collective_timeout = std::chrono::minutes(10);
};

// One for a process: MPI cannot be begun again after its end.
Result<std::unique_ptr<Communicator>> make_mpi_communicator(const MpiOptions& options = {});

}  // namespace sluice::engine
