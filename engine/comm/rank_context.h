// RankContext: which rank of a run this process is, and its host and device; read from the
// environment that a launcher set.
//
// Launchers in the order in which they are tried; the first whose variables are complete is used:
//   torchrun  RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT; DeepSpeed's
//             launcher, with LOCAL_SIZE instead of LOCAL_WORLD_SIZE; Kubeflow's PyTorchJob, without
//             the local numbers: then each rank has a host, or a pod, to itself
//   OpenMPI   OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}
//   Slurm     SLURM_PROCID SLURM_NTASKS SLURM_LOCALID, tasks per node, SLURM_NODEID, the node list;
//             only in a step of srun, recognised by SLURM_STEP_ID with SLURM_STEP_NUM_TASKS or
//             SLURM_STEP_TASKS_PER_NODE
//   MPICH     PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS (Hydra; Intel MPI too)
// If none applies, there is one rank. MASTER_ADDR, MASTER_PORT, SLUICE_JOB, SLUICE_SECRET,
// SLUICE_SECRET_FILE and SLUICE_LISTEN are obeyed under every launcher. If torchrun uses the port
// for its own store (TORCHELASTIC_USE_AGENT_STORE), the next one is taken.
//
// Threads: read_launch() from any; the others are for the main thread, at start.
// Errors:  kInvalidArgument with a sentence that names the variables and their values: an
//          incomplete set, numbers that contradict each other, or two launchers that disagree.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "aio/result.h"

namespace sluice::engine {

class Communicator;

constexpr int kMaxRanks = 65536;
constexpr std::uint16_t kDefaultMasterPort = 29500;

struct RankContext {
  int rank = 0;         // in the world
  int world = 1;        // ranks of the run
  int local_rank = 0;   // on this host
  int local_world = 1;  // ranks on this host
  int device = 0;       // CUDA device number in this process; -1: none is visible

  bool operator==(const RankContext&) const = default;
};

enum class Launcher : std::uint8_t { kNone, kTorchrun, kOpenMpi, kSlurm, kMpich };

struct Launch {
  Launcher launcher = Launcher::kNone;
  RankContext context;
  // The number of tasks of a Slurm allocation if this process is none of them: a batch script, or a
  // shell of salloc. 0: no such allocation, or a launcher started this process.
  int tasks_beside = 0;
  // Where rank 0 listens. Empty: this launcher does not say (MPI has its own means).
  std::string master_address = {};
  std::uint16_t master_port = kDefaultMasterPort;
  // Equal for all ranks of this run, and different for a run that might use the same port. From
  // SLUICE_JOB, or torchrun's or Slurm's identifier; empty if there is neither.
  std::string job = {};
  // SLUICE_SECRET, or the file that has it; the ranks prove it to each other (run_key.h).
  std::string secret = {};
  std::string secret_file = {};
  // SLUICE_LISTEN: the address of this host at which it listens, and which others use. Empty: the
  // address that leads to the others.
  std::string listen_address = {};
  std::string described = {};  // "torchrun says rank 5 of 8"
};

using Environment = std::map<std::string, std::string, std::less<>>;

// The environment of this process.
Environment own_environment();

// Pure.
Result<Launch> read_launch(const Environment& environment);

// Connects this process with the other ranks, by TCP if the launcher tells where rank 0 listens and
// otherwise by MPI, and waits for them. `listener`: rank 0's socket that already listens; -1: none.
// Errors: those of the transports; kUnsupported if MPI is needed and its plug-in is missing.
Result<std::unique_ptr<Communicator>> meet_ranks(const Launch& launch, int listener = -1);

}  // namespace sluice::engine
