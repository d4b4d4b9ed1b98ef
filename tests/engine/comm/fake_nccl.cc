// NCCL's functions for ranks that are threads of one process, with host memory as device memory:
// enough to test how the communicator uses them. Like NCCL they only enqueue: each communicator has
// a thread that executes one operation after another, and a stream is done when all of its
// operations are. Nothing completes before all ranks have called, so "in progress" is tested too.
//
// Tests control it with fake_nccl_*() at the end.
#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr int kSuccess = 0;
constexpr int kSystemError = 2;
constexpr int kInvalidArgument = 4;
constexpr int kInProgress = 7;
constexpr int kUint8 = 1;
constexpr int kNone = -1;

struct UniqueId {
  char internal[128];
};

// Like nccl.h of 2.18.
struct Config {
  std::size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;
};

using Message = std::vector<char>;

// One lock for everything: this is about order, not speed.
std::mutex mutex;
std::condition_variable changed;

struct World {
  int size = 0;
  int joined = 0;
  std::map<std::pair<int, int>, std::deque<Message>> mail;  // (from, to)
};
struct SplitCall {
  int color;
  int key;
  int rank;
  struct FakeComm* made;
};

std::map<std::string, std::shared_ptr<World>> worlds;
std::map<std::pair<World*, int>, std::vector<SplitCall>> splits;  // (parent, number of the call)
std::map<void*, int> under_way;                                   // operations on a stream
int next_id = 1;
int hanging_rank = kNone;
int failing_rank = kNone;
int aborts = 0;
int open_comms = 0;
std::size_t largest_send = 0;

struct FakeComm {
  std::shared_ptr<World> world;
  int rank = 0;
  int rank_of_all = 0;
  int splits = 0;
  bool split_pending = false;
  bool aborted = false;
  bool closing = false;
  std::deque<std::pair<void*, std::function<void()>>> queue;
  std::thread worker;

  // Called with the lock held, which waiting releases.
  Message take(std::unique_lock<std::mutex>& lock, int from) {
    auto& box = world->mail[{from, rank}];
    changed.wait(lock, [&] { return aborted || !box.empty(); });
    if (aborted) return {};
    Message message = std::move(box.front());
    box.pop_front();
    return message;
  }
  void put(int to, const void* bytes, std::size_t size) {
    const auto* const begin = static_cast<const char*>(bytes);
    world->mail[{rank, to}].emplace_back(begin, begin + size);
    changed.notify_all();
  }
  bool is_ready() const { return world != nullptr && world->joined == world->size; }

  void work() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return aborted || closing || !queue.empty(); });
      if (queue.empty() && (aborted || closing)) return;
      auto [stream, thing] = std::move(queue.front());
      queue.pop_front();
      if (hanging_rank == rank_of_all) changed.wait(lock, [&] { return aborted; });
      if (!aborted) {
        current_lock = &lock;
        thing();
      }
      --under_way[stream];
      changed.notify_all();
    }
  }
  std::unique_lock<std::mutex>* current_lock = nullptr;
};

struct Grouped {
  FakeComm* comm;
  void* stream;
  bool is_send;
  int peer;
  const void* from;
  void* to;
  std::size_t size;
};
thread_local std::vector<Grouped> group;
thread_local int group_depth = 0;

std::size_t size_of(int type) { return type == kUint8 ? 1 : 0; }

int enqueue(FakeComm* comm, void* stream, std::function<void()> thing) {
  const std::scoped_lock lock(mutex);
  if (!comm->is_ready() || comm->aborted) return kInvalidArgument;
  ++under_way[stream];
  comm->queue.emplace_back(stream, std::move(thing));
  changed.notify_all();
  return kSuccess;
}

int run_group() {
  std::map<FakeComm*, std::vector<Grouped>> by_comm;
  for (const Grouped& one : group) by_comm[one.comm].push_back(one);
  group.clear();
  int code = kSuccess;
  for (auto& [comm, ones] : by_comm) {
    const auto thing = [comm = comm, ones = ones] {
      for (const Grouped& one : ones) {
        if (one.is_send) comm->put(one.peer, one.from, one.size);
      }
      for (const Grouped& one : ones) {
        if (one.is_send) continue;
        const Message message = comm->take(*comm->current_lock, one.peer);
        if (message.size() == one.size) std::memcpy(one.to, message.data(), one.size);
      }
    };
    code = std::max(code, enqueue(comm, ones.front().stream, thing));
  }
  return code;
}

FakeComm* new_comm(int rank, int rank_of_all) {
  auto* const comm = new FakeComm;
  comm->rank = rank;
  comm->rank_of_all = rank_of_all;
  comm->worker = std::thread([comm] { comm->work(); });
  ++open_comms;
  return comm;
}

int end(FakeComm* comm, bool abort) {
  {
    const std::scoped_lock lock(mutex);
    comm->aborted |= abort;
    comm->closing = true;
    aborts += abort ? 1 : 0;
    --open_comms;
    changed.notify_all();
  }
  comm->worker.join();
  delete comm;
  return kSuccess;
}

// The pieces of all ranks, concatenated.
Message gather(FakeComm* comm, const void* from, std::size_t size) {
  for (int peer = 0; peer < comm->world->size; ++peer) comm->put(peer, from, size);
  Message all;
  for (int peer = 0; peer < comm->world->size; ++peer) {
    const Message piece = comm->take(*comm->current_lock, peer);
    all.insert(all.end(), piece.begin(), piece.end());
  }
  return all;
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): they are NCCL's.
extern "C" {

int ncclGetVersion(int* version) {
  *version = 22809;
  return kSuccess;
}

int ncclGetUniqueId(UniqueId* id) {
  const std::scoped_lock lock(mutex);
  *id = {};
  std::memcpy(id->internal, &next_id, sizeof next_id);
  ++next_id;
  return kSuccess;
}

int ncclCommInitRankConfig(FakeComm** made, int ranks, UniqueId id, int rank, Config* config) {
  if (config->magic != 0xcafebeef || config->blocking != 0) return kInvalidArgument;
  const std::scoped_lock lock(mutex);
  *made = new_comm(rank, rank);
  auto& world = worlds[std::string(id.internal, sizeof id.internal)];
  if (world == nullptr) world = std::make_shared<World>();
  world->size = ranks;
  ++world->joined;
  (*made)->world = world;
  return kInProgress;
}

int ncclCommSplit(FakeComm* comm, int color, int key, FakeComm** made, Config* config) {
  if (config->magic != 0xcafebeef || config->blocking != 0) return kInvalidArgument;
  const std::scoped_lock lock(mutex);
  *made = color < 0 ? nullptr : new_comm(0, comm->rank_of_all);
  auto& calls = splits[{comm->world.get(), comm->splits++}];
  calls.push_back({color, key, comm->rank, *made});
  if (calls.size() < static_cast<std::size_t>(comm->world->size)) return kInProgress;
  std::sort(calls.begin(), calls.end(), [](const SplitCall& a, const SplitCall& b) {
    return std::pair(a.key, a.rank) < std::pair(b.key, b.rank);
  });
  std::map<int, std::shared_ptr<World>> parts;
  for (const SplitCall& call : calls) {
    if (call.made == nullptr) continue;
    auto& part = parts[call.color];
    if (part == nullptr) part = std::make_shared<World>();
    call.made->rank = part->size++;
    ++part->joined;
    call.made->world = part;
  }
  return kSuccess;
}

int ncclCommGetAsyncError(FakeComm* comm, int* error) {
  const std::scoped_lock lock(mutex);
  *error = comm->is_ready() ? kSuccess : kInProgress;
  if (failing_rank == comm->rank_of_all) *error = kSystemError;
  return kSuccess;
}

int ncclCommAbort(FakeComm* comm) { return end(comm, true); }
int ncclCommFinalize(FakeComm* /*comm*/) { return kSuccess; }
int ncclCommDestroy(FakeComm* comm) { return end(comm, false); }

const char* ncclGetErrorString(int code) {
  return code == kSystemError ? "unhandled system error" : "another error";
}
const char* ncclGetLastError(FakeComm* /*comm*/) { return "a cable was pulled"; }

int ncclGroupStart() {
  ++group_depth;
  return kSuccess;
}
int ncclGroupEnd() { return --group_depth == 0 ? run_group() : kSuccess; }

int ncclSend(const void* from, std::size_t count, int type, int peer, FakeComm* comm,
             void* stream) {
  {
    const std::scoped_lock lock(mutex);
    largest_send = std::max(largest_send, count * size_of(type));
  }
  group.push_back({comm, stream, true, peer, from, nullptr, count * size_of(type)});
  return group_depth == 0 ? run_group() : kSuccess;
}
int ncclRecv(void* to, std::size_t count, int type, int peer, FakeComm* comm, void* stream) {
  group.push_back({comm, stream, false, peer, nullptr, to, count * size_of(type)});
  return group_depth == 0 ? run_group() : kSuccess;
}

int ncclAllGather(const void* from, void* to, std::size_t count, int type, FakeComm* comm,
                  void* stream) {
  return enqueue(comm, stream, [=] {
    const Message all = gather(comm, from, count * size_of(type));
    if (!all.empty()) std::memcpy(to, all.data(), all.size());
  });
}

int ncclBroadcast(const void* from, void* to, std::size_t count, int type, int root, FakeComm* comm,
                  void* stream) {
  return enqueue(comm, stream, [=] {
    const std::size_t size = count * size_of(type);
    for (int peer = 0; comm->rank == root && peer < comm->world->size; ++peer) {
      comm->put(peer, from, size);
    }
    const Message message = comm->take(*comm->current_lock, root);
    if (message.size() == size) std::memcpy(to, message.data(), size);
  });
}

// --- controls for tests --------------------------------------------------------------------------

int fake_nccl_stream_done(void* stream) {
  const std::scoped_lock lock(mutex);
  return under_way[stream] == 0 ? 1 : 0;
}
// The rank of the world that ignores everything enqueued on it, or that reports an error; -1: none.
void fake_nccl_set(int hangs, int fails) {
  const std::scoped_lock lock(mutex);
  hanging_rank = hangs;
  failing_rank = fails;
  aborts = 0;
  largest_send = 0;
}
int fake_nccl_aborts() {
  const std::scoped_lock lock(mutex);
  return aborts;
}
int fake_nccl_open_comms() {
  const std::scoped_lock lock(mutex);
  return open_comms;
}
std::size_t fake_nccl_largest_send() {
  const std::scoped_lock lock(mutex);
  return largest_send;
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
