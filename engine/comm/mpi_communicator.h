// make_mpi_communicator: host memory between ranks that mpirun or Slurm started, through the
// installed MPI. For ranks without GPUs, and for networks that MPI supports better than TCP.
//
// Needs:   the plug-in sluice_mpi (SluiceMpi), which is built if mpi.h is found.
// Threads: as communicator.h. abort() from another thread than the one in a collective breaks MPI's
//          rules, but ends the process nevertheless.
// Errors:  kUnsupported: no plug-in, or it cannot be loaded (with the loader's message). A rank
//          that dies makes mpirun end all ranks, without an error here. A rank that fails calls
//          abort(), which is MPI_Abort: it prints the reason and ends all ranks, including this
//          one.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
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

// The function table of sluice_mpi, the only shared library that is built with mpi.h.
//
// Programs open it at run time, so that they need MPI only if it is used. They open it with
// RTLD_GLOBAL, because OpenMPI's handles are symbols that its own plug-ins look up. Functions
// return 0, or another number after writing a sentence into `error`, which has
// SLUICE_MPI_ERROR_BYTES.
//
// Threads: one at a time.
#define SLUICE_MPI_ERROR_BYTES 512
#define SLUICE_MPI_LABEL_BYTES 32
/* Results of exchange() in addition to 0 and 1. */
#define SLUICE_MPI_TIMED_OUT 2
#define SLUICE_MPI_OTHER_LABEL 3

/* A message to, or from, another rank. Its label is sent before it. */
struct SluiceMpiMessage {
  int peer;
  int is_send;
  void* bytes;
  uint64_t size_bytes;
  unsigned char label[SLUICE_MPI_LABEL_BYTES]; /* incoming: the received one */
  const void* expected_label;                  /* incoming only */
  int is_done;
};

struct SluiceMpi {
  uint32_t version;
  /* Calls MPI_Init_thread, unless MPI is initialised; returns rank and size of the world. */
  int (*start)(int* rank, int* world, char* error);
  /* For every rank: the lowest rank of its host, and its place among that host's ranks. */
  int (*places)(int* first_of_host, int* local_rank, char* error);
  /* Exchanges all messages at once. SLUICE_MPI_TIMED_OUT: is_done says which are complete.
   * SLUICE_MPI_OTHER_LABEL: message *wrong has an unexpected label. The run cannot continue after
   * either. */
  int (*exchange)(struct SluiceMpiMessage* messages, size_t count, int64_t timeout_ms,
                  size_t* wrong, char* error);
  /* Prints the reason, and ends all ranks. */
  void (*abort)(const char* reason);
  /* MPI_Finalize, if start() began it. */
  void (*finish)(void);
};

#define SLUICE_MPI_VERSION 1
#define SLUICE_MPI_SYMBOL "sluice_mpi_table"
