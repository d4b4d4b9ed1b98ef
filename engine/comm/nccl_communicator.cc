#include "engine/comm/nccl_communicator.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "engine/comm/nccl_api.h"

namespace sluice::engine {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// After an NCCL error: how long to wait for a report from the rank that caused it.
constexpr milliseconds kWordWithin{1000};
constexpr milliseconds kLookEvery{50};
constexpr milliseconds kCloseWithin{5000};
// A waiter polls often at first, then seldom.
constexpr milliseconds kSpinFor{1};
constexpr microseconds kPause{50};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(Communicator& host, std::unique_ptr<Communicator> owned,
                   const NcclOptions& options, const nccl::Api& api)
      : owned_host_(std::move(owned)), host_(&host), options_(options), api_(api) {}

  ~NcclCommunicator() override {
    {
      const std::scoped_lock lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (watcher_.joinable()) watcher_.join();
    close();
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  Status connect() {
    nccl::UniqueId id{};
    Status got;
    if (host_->rank() == 0) got = judge(api_.get_unique_id(&id), nullptr, "ncclGetUniqueId");
    if (!got.ok()) return give_up(got.error());
    SLUICE_RETURN_IF_ERROR(host_->broadcast(std::as_writable_bytes(std::span(id.internal)), 0));
    nccl::Config config;
    nccl::Comm* world = nullptr;
    const nccl::Code code =
        api_.comm_init_rank_config(&world, host_->world_size(), id, host_->rank(), &config);
    owned_.push_back(world);
    of_group_[0] = world;
    SLUICE_RETURN_IF_ERROR(wait_for_call(code, world, "connecting the GPUs"));
    for (const ProcessGroup group : {ProcessGroup::kNode, ProcessGroup::kPeers}) {
      SLUICE_RETURN_IF_ERROR(split(group));
    }
    watcher_ = std::thread([this] { watch(); });
    return {};
  }

  int rank(ProcessGroup group) const override { return host_->rank(group); }
  int world_size(ProcessGroup group) const override { return host_->world_size(group); }
  offload::Topology topology() const override { return host_->topology(); }

  Status finish(void* stream) override {
    if (stream == nullptr) return host_->finish(nullptr);
    if (!options_.stream_done) {
      return Error(ErrorCode::kUnsupported, "nothing was given that knows when a stream is done");
    }
    return wait_until([&]() -> Result<bool> { return options_.stream_done(stream); },
                      options_.collective_timeout, "the work on a stream, including a collective,");
  }

  void abort(std::string_view reason) noexcept override {
    host_->abort(reason);
    abort_nccl();
  }
  Status health() const override {
    {
      const std::scoped_lock lock(mutex_);
      if (failure_) return *failure_;
    }
    return host_->health();
  }

 private:
  // Makes the communicator of a part of the world; none if the rank is alone in its part.
  Status split(ProcessGroup group) {
    std::vector<int> members(static_cast<std::size_t>(world_size(group)));
    SLUICE_RETURN_IF_ERROR(host_->all_gather_values(host_->rank(), members, group));
    std::vector<int> whole(static_cast<std::size_t>(host_->world_size()));
    std::iota(whole.begin(), whole.end(), 0);
    const auto index = static_cast<std::size_t>(group);
    const bool own_part = members.size() > 1 && members != whole;
    if (members == whole) of_group_[index] = of_group_[0];
    // Splitting is a collective of the world, so either all ranks call it or none.
    std::vector<std::int64_t> parts = {own_part ? 1 : 0};
    SLUICE_RETURN_IF_ERROR(host_->sum(parts));
    if (parts[0] == 0) return {};
    nccl::Config config;
    const int color =
        own_part ? *std::min_element(members.begin(), members.end()) : nccl::kSplitNoColor;
    nccl::Comm* part = nullptr;
    const nccl::Code code =
        api_.comm_split(of_group_[0], color, host_->rank(group), &part, &config);
    SLUICE_RETURN_IF_ERROR(wait_for_call(code, of_group_[0], "connecting a part of the GPUs"));
    if (!own_part) return {};
    owned_.push_back(part);
    of_group_[index] = part;
    return wait_for_call(nccl::kSuccess, part, "connecting a part of the GPUs");
  }

  Status do_all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                       const CollectiveOptions& options) override {
    if (options.stream == nullptr) return host_->all_gather(mine, all, options);
    if (world_size(options.group) == 1) return copy(mine, all, options.stream);
    return enqueue(options.group, mine.size(), "ncclAllGather", [&](nccl::Comm* comm) {
      return api_.all_gather(mine.data(), all.data(), mine.size(), nccl::kUint8, comm,
                             options.stream);
    });
  }

  Status do_broadcast(std::span<std::byte> bytes, int root,
                      const CollectiveOptions& options) override {
    if (options.stream == nullptr) return host_->broadcast(bytes, root, options);
    if (world_size(options.group) == 1) return health();
    return enqueue(options.group, bytes.size(), "ncclBroadcast", [&](nccl::Comm* comm) {
      return api_.broadcast(bytes.data(), bytes.data(), bytes.size(), nccl::kUint8, root, comm,
                            options.stream);
    });
  }

  Status do_all_to_all(std::span<const std::byte> sent, std::span<std::byte> received,
                       const CollectiveOptions& options) override {
    if (options.stream == nullptr) return host_->all_to_all(sent, received, options);
    if (world_size(options.group) == 1) return copy(sent, received, options.stream);
    if (sent.data() == received.data() && !sent.empty()) {
      return Error(ErrorCode::kUnsupported, "all_to_all in place: not on device memory by NCCL");
    }
    const auto ranks = static_cast<std::uint64_t>(world_size(options.group));
    const std::uint64_t pieces = ranks * options.batches;
    const std::uint64_t piece_bytes = received.size() / pieces;
    const std::uint64_t stride =
        options.sent_stride_bytes > 0 ? options.sent_stride_bytes : piece_bytes;
    for (std::uint64_t begin = 0; begin < piece_bytes; begin += options_.max_send_bytes) {
      const std::uint64_t bytes = std::min(options_.max_send_bytes, piece_bytes - begin);
      SLUICE_RETURN_IF_ERROR(enqueue(
          options.group, bytes, "an all_to_all of ncclSend and ncclRecv", [&](nccl::Comm* comm) {
            nccl::Code code = api_.group_start();
            for (std::uint64_t number = 0; number < pieces; ++number) {
              const auto peer = static_cast<int>(number % ranks);
              keep_worse(&code, api_.send(sent.data() + number * stride + begin, bytes,
                                          nccl::kUint8, peer, comm, options.stream));
              keep_worse(&code, api_.receive(received.data() + number * piece_bytes + begin, bytes,
                                             nccl::kUint8, peer, comm, options.stream));
            }
            keep_worse(&code, api_.group_end());
            return code;
          }));
    }
    return {};
  }

  Status do_send_receive(const Messages& messages, const CollectiveOptions& options) override {
    if (options.stream == nullptr) return host_->send_receive(messages, options);
    const std::uint64_t most = std::max(messages.sent.size(), messages.received.size());
    for (std::uint64_t begin = 0; begin < most; begin += options_.max_send_bytes) {
      const auto piece = [&](auto whole) {
        const std::uint64_t first = std::min(begin, whole.size());
        return whole.subspan(first, std::min(options_.max_send_bytes, whole.size() - first));
      };
      const auto sent = piece(messages.sent);
      const auto received = piece(messages.received);
      SLUICE_RETURN_IF_ERROR(
          enqueue(options.group, most, "ncclSend and ncclRecv", [&](nccl::Comm* comm) {
            nccl::Code code = api_.group_start();
            if (!sent.empty()) {
              keep_worse(&code, api_.send(sent.data(), sent.size(), nccl::kUint8, messages.to, comm,
                                          options.stream));
            }
            if (!received.empty()) {
              keep_worse(&code, api_.receive(received.data(), received.size(), nccl::kUint8,
                                             messages.from, comm, options.stream));
            }
            keep_worse(&code, api_.group_end());
            return code;
          }));
    }
    return health();
  }

  // It has an NCCL communicator of its own, on the same device.
  Result<std::unique_ptr<Communicator>> do_part(std::span<const int> ranks) override {
    SLUICE_ASSIGN_OR_RETURN(auto host, host_->part(ranks));
    return make_nccl_communicator(std::move(host), options_);
  }

  Status do_barrier(ProcessGroup group) override {
    SLUICE_RETURN_IF_ERROR(health());
    return host_->barrier(group);
  }

  // A lone rank sends to itself, because this class has no other way to copy device memory.
  Status copy(std::span<const std::byte> from, std::span<std::byte> to, void* stream) {
    if (from.data() == to.data()) return health();
    const int self = rank(ProcessGroup::kWorld);
    for (std::uint64_t begin = 0; begin < from.size(); begin += options_.max_send_bytes) {
      const std::uint64_t bytes = std::min(options_.max_send_bytes, from.size() - begin);
      SLUICE_RETURN_IF_ERROR(
          enqueue(ProcessGroup::kWorld, bytes, "ncclSend to itself", [&](nccl::Comm* comm) {
            nccl::Code code = api_.group_start();
            keep_worse(&code,
                       api_.send(from.data() + begin, bytes, nccl::kUint8, self, comm, stream));
            keep_worse(&code,
                       api_.receive(to.data() + begin, bytes, nccl::kUint8, self, comm, stream));
            keep_worse(&code, api_.group_end());
            return code;
          }));
    }
    return health();
  }

  static void keep_worse(nccl::Code* code, nccl::Code next) {
    if (*code == nccl::kSuccess || *code == nccl::kInProgress) {
      if (next != nccl::kSuccess) *code = next;
    }
  }

  template <typename Call>
  Status enqueue(ProcessGroup group, std::uint64_t count, const char* what, const Call& call) {
    SLUICE_RETURN_IF_ERROR(health());
    if (count == 0) return {};
    nccl::Code code = nccl::kSuccess;
    nccl::Comm* comm = nullptr;
    {
      const std::scoped_lock lock(mutex_);
      if (aborted_) return failure_locked();
      comm = of_group_[static_cast<std::size_t>(group)];
      code = call(comm);
    }
    return wait_for_call(code, comm, what);
  }

  // Waits until NCCL has completed the call; the first call with a peer connects to it.
  Status wait_for_call(nccl::Code code, nccl::Comm* comm, const char* what) {
    if (code != nccl::kSuccess && code != nccl::kInProgress) {
      return give_up(judge(code, comm, what).error());
    }
    return wait_until(
        [&]() -> Result<bool> {
          const std::scoped_lock lock(mutex_);
          if (aborted_) return failure_locked().error();
          nccl::Code state = nccl::kSuccess;
          const nccl::Code asked = api_.comm_get_async_error(comm, &state);
          if (asked != nccl::kSuccess) state = asked;
          if (state == nccl::kInProgress) return false;
          SLUICE_RETURN_IF_ERROR(judge(state, comm, what));
          return true;
        },
        options_.connect_timeout, what);
  }

  // Returns when done() returns true or an error, another rank fails, or the time is over. An error
  // ends the run.
  template <typename Done>
  Status wait_until(const Done& done, milliseconds timeout, const char* what) {
    const auto begin = steady_clock::now();
    while (true) {
      const Result<bool> is_done = done();
      if (!is_done.ok()) return give_up(is_done.error());
      Status known = health();
      if (!known.ok()) {
        abort_nccl();
        return known;
      }
      if (*is_done) return {};
      const auto waited = steady_clock::now() - begin;
      if (waited > timeout) {
        return give_up(
            Error(ErrorCode::kTimedOut, "NCCL: rank " + std::to_string(host_->rank()) + " waited " +
                                            std::to_string(timeout.count()) + " ms for " + what +
                                            ", and no rank is known to have failed"));
      }
      if (waited < kSpinFor) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(kPause);
      }
    }
  }

  Status judge(nccl::Code code, nccl::Comm* comm, const char* what) const {
    if (code == nccl::kSuccess || code == nccl::kInProgress) return {};
    std::string words = std::string(what) + " failed: " + api_.get_error_string(code);
    const char* const last = comm == nullptr ? nullptr : api_.get_last_error(comm);
    if (last != nullptr && *last != '\0') words += std::string(" (") + last + ")";
    return Error(ErrorCode::kIo, words);
  }

  // Handles a failure seen on this rank. A rank that died makes NCCL fail everywhere; the host
  // transport finds out a moment later which rank it was.
  Status give_up(const Error& error) {
    if (error.code() != ErrorCode::kTimedOut) {
      const auto until = steady_clock::now() + kWordWithin;
      while (host_->health().ok() && steady_clock::now() < until) {
        std::this_thread::sleep_for(milliseconds(10));
      }
    }
    const Status word = host_->health();
    {
      const std::scoped_lock lock(mutex_);
      if (!failure_) failure_ = word.ok() ? error : word.error();
    }
    if (word.ok()) host_->abort(error.message());
    abort_nccl();
    return health();
  }

  Status failure_locked() const {
    return failure_ ? *failure_ : Error(ErrorCode::kCancelled, "NCCL was aborted");
  }

  // Ends the kernels that wait for other ranks. Later calls are refused.
  void abort_nccl() {
    const Status known = host_->health();
    const std::scoped_lock lock(mutex_);
    if (!failure_ && !known.ok()) failure_ = known.error();
    if (aborted_) return;
    aborted_ = true;
    for (auto comm = owned_.rbegin(); comm != owned_.rend(); ++comm) {
      if (*comm != nullptr) static_cast<void>(api_.comm_abort(*comm));
    }
    owned_.clear();
    of_group_ = {};
  }

  void watch() {
    std::unique_lock lock(mutex_);
    while (!stopping_ && !aborted_) {
      std::optional<Error> broken;
      for (nccl::Comm* comm : owned_) {
        nccl::Code state = nccl::kSuccess;
        static_cast<void>(api_.comm_get_async_error(comm, &state));
        const Status status = judge(state, comm, "a collective of NCCL's");
        if (!status.ok() && !broken) broken = status.error();
      }
      lock.unlock();
      if (broken) {
        static_cast<void>(give_up(*broken));
      } else if (!host_->health().ok()) {
        abort_nccl();
      }
      lock.lock();
      changed_.wait_for(lock, kLookEvery, [&] { return stopping_; });
    }
  }

  // Closes parts of the world first.
  void close() {
    if (!health().ok()) abort_nccl();
    for (auto comm = owned_.rbegin(); comm != owned_.rend(); ++comm) {
      if (*comm == nullptr) continue;
      nccl::Code state = api_.comm_finalize(*comm);
      const auto until = steady_clock::now() + kCloseWithin;
      while (state == nccl::kInProgress && steady_clock::now() < until && host_->health().ok()) {
        std::this_thread::sleep_for(milliseconds(1));
        if (api_.comm_get_async_error(*comm, &state) != nccl::kSuccess) break;
      }
      static_cast<void>(state == nccl::kSuccess ? api_.comm_destroy(*comm)
                                                : api_.comm_abort(*comm));
    }
  }

  const std::unique_ptr<Communicator> owned_host_;  // null: `host_` is the caller's
  Communicator* const host_;
  const NcclOptions options_;
  const nccl::Api api_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<nccl::Comm*> owned_;                         // the world's is first
  std::array<nccl::Comm*, kProcessGroups> of_group_ = {};  // nullptr: a group of one rank
  std::optional<Error> failure_;
  bool aborted_ = false;
  bool stopping_ = false;

  std::thread watcher_;
};

Result<std::unique_ptr<Communicator>> connected(Communicator& host,
                                                std::unique_ptr<Communicator> owned,
                                                const NcclOptions& options) {
  auto api = nccl::open_nccl(options.library);
  if (!api.ok()) {
    Error error = std::move(api).error().with_suffix("; sluice doctor says more");
    host.abort(error.message());
    return error;
  }
  auto made = std::make_unique<NcclCommunicator>(host, std::move(owned), options, *api);
  SLUICE_RETURN_IF_ERROR(made->connect());
  return std::unique_ptr<Communicator>(std::move(made));
}

}  // namespace

Result<std::unique_ptr<Communicator>> make_nccl_communicator(std::unique_ptr<Communicator> host,
                                                             const NcclOptions& options) {
  Communicator& it = *host;
  return connected(it, std::move(host), options);
}

Result<std::unique_ptr<Communicator>> make_nccl_communicator(Communicator& host,
                                                             const NcclOptions& options) {
  return connected(host, nullptr, options);
}

}  // namespace sluice::engine
