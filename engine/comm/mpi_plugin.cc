#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "engine/comm/mpi_communicator.h"

namespace {

using Time = std::chrono::steady_clock;

constexpr std::uint64_t kMaxPieceBytes = 1U << 30;  // MPI counts with int
constexpr int kLabelTag = 1;
constexpr int kBytesTag = 2;
// How long a waiting rank only yields the core before it sleeps between polls.
constexpr auto kSpin = std::chrono::milliseconds(2);

struct Pending {
  MPI_Request request;
  std::size_t message;
  bool is_label;
};

struct World {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int size = 0;
  bool finalize = false;
  std::vector<Pending> pending;
};
World world;

int failed(const char* what, int result, char* error) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(result, text, &length);
  static_cast<void>(std::snprintf(error, SLUICE_MPI_ERROR_BYTES, "%s: %s", what, text));
  return 1;
}

#define RETURN_IF_FAILED(call)                                                                    \
  do {                                                                                            \
    if (const int result_ = (call); result_ != MPI_SUCCESS) return failed(#call, result_, error); \
  } while (false)

int start(int* rank, int* size, char* error) {
  int initialized = 0;
  RETURN_IF_FAILED(MPI_Initialized(&initialized));
  if (initialized == 0) {
    int provided = 0;
    RETURN_IF_FAILED(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided));
    world.finalize = true;
    if (provided < MPI_THREAD_SERIALIZED) {
      static_cast<void>(std::snprintf(error, SLUICE_MPI_ERROR_BYTES,
                                      "this MPI cannot be called by more than one thread"));
      return 1;
    }
  }
  RETURN_IF_FAILED(MPI_Comm_dup(MPI_COMM_WORLD, &world.comm));
  RETURN_IF_FAILED(MPI_Comm_set_errhandler(world.comm, MPI_ERRORS_RETURN));
  RETURN_IF_FAILED(MPI_Comm_rank(world.comm, &world.rank));
  RETURN_IF_FAILED(MPI_Comm_size(world.comm, &world.size));
  *rank = world.rank;
  *size = world.size;
  return 0;
}

int places(int* first_of_host, int* local_rank, char* error) {
  MPI_Comm node = MPI_COMM_NULL;
  RETURN_IF_FAILED(
      MPI_Comm_split_type(world.comm, MPI_COMM_TYPE_SHARED, world.rank, MPI_INFO_NULL, &node));
  int own_local = 0;
  RETURN_IF_FAILED(MPI_Comm_rank(node, &own_local));
  int first = world.rank;
  RETURN_IF_FAILED(MPI_Bcast(&first, 1, MPI_INT, 0, node));
  RETURN_IF_FAILED(MPI_Comm_free(&node));
  RETURN_IF_FAILED(MPI_Allgather(&first, 1, MPI_INT, first_of_host, 1, MPI_INT, world.comm));
  RETURN_IF_FAILED(MPI_Allgather(&own_local, 1, MPI_INT, local_rank, 1, MPI_INT, world.comm));
  return 0;
}

int post(SluiceMpiMessage& message, std::size_t index, char* error) {
  const auto add = [&](void* bytes, std::uint64_t size_bytes, int tag) {
    MPI_Request request = MPI_REQUEST_NULL;
    const auto count = static_cast<int>(size_bytes);
    const int result =
        message.is_send != 0
            ? MPI_Isend(bytes, count, MPI_BYTE, message.peer, tag, world.comm, &request)
            : MPI_Irecv(bytes, count, MPI_BYTE, message.peer, tag, world.comm, &request);
    // exchange() looks after it.
    world.pending.push_back({request, index, tag == kLabelTag});  // NOLINT(*-optin.mpi.MPI-Checker)
    return result;
  };
  message.is_done = 0;
  RETURN_IF_FAILED(add(message.label, sizeof message.label, kLabelTag));
  for (std::uint64_t at = 0; at < message.size_bytes; at += kMaxPieceBytes) {
    RETURN_IF_FAILED(add(static_cast<char*>(message.bytes) + at,
                         std::min(kMaxPieceBytes, message.size_bytes - at), kBytesTag));
  }
  return 0;
}

// Abandons the pending messages, because the run ends.
void give_up() {
  for (Pending& pending : world.pending) {
    if (pending.request == MPI_REQUEST_NULL) continue;
    MPI_Cancel(&pending.request);
    MPI_Request_free(&pending.request);
  }
  world.pending.clear();
}

int exchange(SluiceMpiMessage* messages, std::size_t count, std::int64_t timeout_ms,
             std::size_t* wrong, char* error) {
  world.pending.clear();
  for (std::size_t i = 0; i < count; ++i) {
    if (post(messages[i], i, error) != 0) return 1;
  }
  const auto begin = Time::now();
  while (!world.pending.empty()) {
    bool moved = false;
    for (std::size_t i = 0; i < world.pending.size();) {
      Pending& pending = world.pending[i];
      SluiceMpiMessage& message = messages[pending.message];
      int done = 0;
      // A message of an unexpected size fails; its label, which arrived first, gives the reason.
      const int result = MPI_Test(&pending.request, &done, MPI_STATUS_IGNORE);
      if (result != MPI_SUCCESS && pending.is_label) return failed("MPI_Test", result, error);
      if (result == MPI_SUCCESS && done == 0) {
        ++i;
        continue;
      }
      if (pending.is_label && message.is_send == 0 &&
          std::memcmp(message.label, message.expected_label, sizeof message.label) != 0) {
        *wrong = pending.message;
        give_up();
        return SLUICE_MPI_OTHER_LABEL;
      }
      moved = true;
      pending = world.pending.back();
      world.pending.pop_back();
    }
    if (moved) continue;
    const auto waited = Time::now() - begin;
    if (waited > std::chrono::milliseconds(timeout_ms)) {
      for (std::size_t i = 0; i < count; ++i) messages[i].is_done = 1;
      for (const Pending& pending : world.pending) messages[pending.message].is_done = 0;
      give_up();
      return SLUICE_MPI_TIMED_OUT;
    }
    if (waited < kSpin) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  return 0;
}

void abort_all(const char* reason) {
  static_cast<void>(std::fprintf(stderr, "rank %d ended the run: %s\n", world.rank, reason));
  MPI_Abort(world.comm == MPI_COMM_NULL ? MPI_COMM_WORLD : world.comm, 1);
}

void finish() {
  if (world.comm != MPI_COMM_NULL) MPI_Comm_free(&world.comm);
  if (world.finalize) MPI_Finalize();
  world.finalize = false;
}

}  // namespace

extern "C" __attribute__((visibility("default")))
const SluiceMpi sluice_mpi_table = {  // NOLINT(readability-identifier-naming)
    SLUICE_MPI_VERSION, start, places, exchange, abort_all, finish};
