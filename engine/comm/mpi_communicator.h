// make_mpi_communicator: host memory between ranks that mpirun or Slurm started, through the
// installed MPI. For ranks without GPUs, and for networks that MPI supports better than TCP.
//
// Needs:   the plug-in sluice_mpi (mpi_plugin.h), which is built if mpi.h is found.
// Threads: as communicator.h. abort() from another thread than the one in a collective breaks MPI's
//          rules, but ends the process nevertheless.
// Errors:  kUnsupported: no plug-in, or it cannot be loaded (with the loader's message). A rank
//          that dies makes mpirun end all ranks, without an error here. A rank that fails calls
//          abort(), which is MPI_Abort: it prints the reason and ends all ranks, including this
//          one.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "aio/result.h"
#include "engine/comm/communicator.h"

namespace sluice::engine {

struct MpiOptions {
  std::string plugin = "libsluice_mpi.so";  // a path, or a name for the loader's search
  std::chrono::milliseconds collective_timeout = std::chrono::minutes(10);
};

// Call it once per process: MPI cannot be initialised again after its end.
Result<std::unique_ptr<Communicator>> make_mpi_communicator(const MpiOptions& options = {});

}  // namespace sluice::engine
