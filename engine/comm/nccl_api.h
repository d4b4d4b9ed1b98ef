// The part of NCCL's API (2.18 or newer) that Sluice uses. It is declared here because the library
// is opened at run time: most build machines do not have it. Names and values are those of nccl.h.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <string>

#include "aio/result.h"

namespace sluice::engine::nccl {

struct Comm;  // ncclComm

struct UniqueId {
  char internal[128];  // NOLINT(modernize-avoid-c-arrays): it is passed by value, as in C
};

using Code = int;  // ncclResult_t
constexpr Code kSuccess = 0;
constexpr Code kInProgress = 7;

using DataType = int;
constexpr DataType kUint8 = 1;

constexpr int kSplitNoColor = -1;
constexpr int kUndefined = INT_MIN;

// ncclConfig_t of 2.18. Newer versions accept it by its size and version, and use their defaults
// for the rest.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21800;
  int blocking = 0;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
};
static_assert(sizeof(Config) == 48);

struct Api {
  Code (*get_version)(int* version);
  Code (*get_unique_id)(UniqueId* id);
  Code (*comm_init_rank_config)(Comm** comm, int ranks, UniqueId id, int rank, Config* config);
  Code (*comm_split)(Comm* comm, int color, int key, Comm** split, Config* config);
  Code (*comm_get_async_error)(Comm* comm, Code* error);
  Code (*comm_abort)(Comm* comm);
  Code (*comm_finalize)(Comm* comm);
  Code (*comm_destroy)(Comm* comm);
  const char* (*get_error_string)(Code code);
  const char* (*get_last_error)(Comm* comm);
  Code (*group_start)();
  Code (*group_end)();
  Code (*all_gather)(const void* send, void* receive, std::size_t send_count, DataType type,
                     Comm* comm, void* stream);
  Code (*broadcast)(const void* send, void* receive, std::size_t count, DataType type, int root,
                    Comm* comm, void* stream);
  Code (*send)(const void* send, std::size_t count, DataType type, int peer, Comm* comm,
               void* stream);
  Code (*receive)(void* receive, std::size_t count, DataType type, int peer, Comm* comm,
                  void* stream);
};

// Uses the copy that is already loaded, such as LibTorch's, or else the one that the loader finds;
// never a second one. It stays loaded. kUnsupported: there is none, or it is too old.
Result<Api> open_nccl(const std::string& library);

}  // namespace sluice::engine::nccl
