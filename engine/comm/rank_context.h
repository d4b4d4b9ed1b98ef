// RankContext: which rank of a run this process is, and on which host and device; and reading it
// from what a launcher left in the environment.
//
// Launchers, in the order in which they are asked; the first whose variables are all there decides:
//   torchrun  RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT; DeepSpeed's
//             launcher, with LOCAL_SIZE instead of LOCAL_WORLD_SIZE; Kubeflow's PyTorchJob, without
//             the local numbers: then each rank has a host, or a pod, to itself
//   OpenMPI   OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}
//   Slurm     SLURM_PROCID SLURM_NTASKS SLURM_LOCALID, tasks per node, SLURM_NODEID, the node list;
//             in a step of srun alone, by SLURM_STEP_ID
//   MPICH     PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS (Hydra; Intel MPI too)
// None of them: one rank. MASTER_ADDR, MASTER_PORT and SLUICE_JOB, SLUICE_SECRET,
// SLUICE_SECRET_FILE and SLUICE_LISTEN are obeyed under every launcher; where torchrun keeps the
// port for a store of its own (TORCHELASTIC_USE_AGENT_STORE), the next one is taken.
//
// All functions are pure: the environment is an argument, and only main() reads the process's own.
// Threads: any. Errors: kInvalidArgument with a sentence that names the variables and their values:
// a set that is half there, numbers that contradict each other, or two launchers that disagree.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "aio/result.h"

namespace sluice::engine {

constexpr int kMaxRanks = 65536;
constexpr std::uint16_t kDefaultMasterPort = 29500;

struct RankContext {
  int rank = 0;         // in the world
  int world = 1;        // ranks of the run
  int local_rank = 0;   // on this host
  int local_world = 1;  // ranks of this host
  int device = 0;       // the CUDA device's number in this process; -1: it may see none

  bool operator==(const RankContext&) const = default;
};

enum class Launcher : std::uint8_t { kNone, kTorchrun, kOpenMpi, kSlurm, kMpich };

struct Launch {
  Launcher launcher = Launcher::kNone;
  RankContext context;
  // The tasks of an allocation of Slurm's in which this process is none: a batch script, or a shell
  // of salloc. 0: there is no such allocation, or a launcher has started this process.
  int tasks_beside = 0;
  // Where rank 0 listens. Empty: this launcher does not say (MPI has means of its own).
  std::string master_address = {};
  std::uint16_t master_port = kDefaultMasterPort;
  // The same for all ranks of this run, and another for a run that might meet it at its port. By
  // SLUICE_JOB, or what torchrun and Slurm call it; empty where neither says.
  std::string job = {};
  // SLUICE_SECRET, or the file that has it: what the ranks prove to each other (run_key.h).
  std::string secret = {};
  std::string secret_file = {};
  // SLUICE_LISTEN: an address of this host where it listens, and which others are told. Empty: the
  // one that leads to others.
  std::string listen_address = {};
};

using Environment = std::map<std::string, std::string, std::less<>>;

Result<Launch> read_launch(const Environment& environment);

}  // namespace sluice::engine
