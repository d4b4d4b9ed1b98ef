#include "engine/comm/mpi_communicator.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

#include "engine/comm/host_communicator.h"

namespace sluice::engine {
namespace {

static_assert(sizeof(WireLabel) == SLUICE_MPI_LABEL_BYTES);

using MpiErrorText = std::array<char, SLUICE_MPI_ERROR_BYTES>;

class MpiLinks final : public HostLinks {
 public:
  MpiLinks(const SluiceMpi& mpi, const MpiOptions& options, int rank, std::vector<RankPlace> places)
      : mpi_(mpi), timeout_(options.collective_timeout), rank_(rank), places_(std::move(places)) {
    messages_.reserve(2 * places_.size());
    expected_.reserve(places_.size());
  }
  ~MpiLinks() override {
    // After a failure other ranks may never call MPI_Finalize, which would wait for them.
    if (failure().ok()) mpi_.finish();
  }
  MpiLinks(const MpiLinks&) = delete;
  MpiLinks& operator=(const MpiLinks&) = delete;

  int rank() const override { return rank_; }
  const std::vector<RankPlace>& places() const override { return places_; }

  Status exchange(const MessageLabel& label, std::span<const Outgoing> sends,
                  std::span<const Incoming> receives) override {
    SLUICE_RETURN_IF_ERROR(failure());
    messages_.clear();
    expected_.clear();
    for (const Incoming& message : receives) {
      expected_.push_back(to_wire(label, message.bytes.size()));
      messages_.push_back({.peer = message.from,
                           .is_send = 0,
                           .bytes = message.bytes.data(),
                           .size_bytes = message.bytes.size(),
                           .expected_label = &expected_.back()});
    }
    for (const Outgoing& message : sends) {
      messages_.push_back({.peer = message.to,
                           .is_send = 1,
                           .bytes = const_cast<std::byte*>(message.bytes.data()),  // NOLINT
                           .size_bytes = message.bytes.size()});
      const WireLabel wire = to_wire(label, message.bytes.size());
      std::memcpy(messages_.back().label, &wire, sizeof wire);
    }
    std::size_t wrong = 0;
    MpiErrorText error{};
    switch (
        mpi_.exchange(messages_.data(), messages_.size(), timeout_.count(), &wrong, error.data())) {
      case 0:
        return {};
      case SLUICE_MPI_TIMED_OUT:
        return timed_out(label);
      case SLUICE_MPI_OTHER_LABEL: {
        WireLabel came;
        std::memcpy(&came, messages_[wrong].label, sizeof came);
        return record(check_label(messages_[wrong].peer, came, expected_[wrong]).error());
      }
      default:
        return record(
            Error(ErrorCode::kIo, std::string(name_of(label.kind)) + ": " + error.data()));
    }
  }

  void abort(std::string_view reason) noexcept override {
    static_cast<void>(record(Error(ErrorCode::kCancelled, std::string(reason))));
    mpi_.abort(std::string(reason).c_str());
  }
  Status failure() const override {
    const std::scoped_lock lock(mutex_);
    return failure_ ? Status(*failure_) : Status();
  }

 private:
  Status timed_out(const MessageLabel& label) {
    std::vector<int> waiting;
    for (const SluiceMpiMessage& message : messages_) {
      if (message.is_done == 0) waiting.push_back(message.peer);
    }
    std::sort(waiting.begin(), waiting.end());
    waiting.erase(std::unique(waiting.begin(), waiting.end()), waiting.end());
    return record(Error(ErrorCode::kTimedOut, std::string(name_of(label.kind)) + ": rank " +
                                                  std::to_string(rank_) + " waited " +
                                                  std::to_string(timeout_.count()) + " ms for " +
                                                  list_ranks(waiting)));
  }
  // The first error counts.
  Status record(Error error) {
    const std::scoped_lock lock(mutex_);
    if (!failure_) failure_ = std::move(error);
    return *failure_;
  }

  const SluiceMpi& mpi_;
  const std::chrono::milliseconds timeout_;
  const int rank_;
  const std::vector<RankPlace> places_;
  std::vector<SluiceMpiMessage> messages_;  // the incoming ones first
  std::vector<WireLabel> expected_;         // of the incoming messages
  mutable std::mutex mutex_;
  std::optional<Error> failure_;
};

}  // namespace

Result<std::unique_ptr<Communicator>> make_mpi_communicator(const MpiOptions& options) {
  // Never closed: MPI leaves threads and handlers that would still run its code.
  void* const library = ::dlopen(options.plugin.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    return Error(ErrorCode::kUnsupported,
                 std::string("MPI cannot be used: ") + ::dlerror() +
                     "; the plug-in sluice_mpi is built where CMake finds mpi.h (libopenmpi-dev)");
  }
  const auto* const mpi = static_cast<const SluiceMpi*>(::dlsym(library, SLUICE_MPI_SYMBOL));
  if (mpi == nullptr || mpi->version != SLUICE_MPI_VERSION) {
    return Error(ErrorCode::kUnsupported,
                 options.plugin + " is the MPI plug-in of another version of Sluice");
  }
  MpiErrorText error{};
  int rank = 0;
  int world = 0;
  if (mpi->start(&rank, &world, error.data()) != 0) return Error(ErrorCode::kIo, error.data());
  std::vector<int> first_of_host(static_cast<std::size_t>(world));
  std::vector<int> local_rank(static_cast<std::size_t>(world));
  if (mpi->places(first_of_host.data(), local_rank.data(), error.data()) != 0) {
    return Error(ErrorCode::kIo, error.data());
  }
  std::vector<RankPlace> places;
  places.reserve(first_of_host.size());
  for (std::size_t i = 0; i < first_of_host.size(); ++i) {
    places.push_back({"host of rank " + std::to_string(first_of_host[i]), local_rank[i]});
  }
  return make_host_communicator(std::make_unique<MpiLinks>(*mpi, options, rank, std::move(places)));
}

}  // namespace sluice::engine
